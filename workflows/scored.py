"""Scores of a session whose answers are scored: one more rule of validity, two more metrics, and two files beside them.

`accuracy.json` and `items.csv` come from the records and the questions' file. Too many unanswered items make the
session INVALID, like any other broken rule; then there is no value.
"""

from pathlib import Path
from typing import Any

from workflows.plan import Plan
from workloads.spec import SpecError


def with_score(folder: Path, plan: Plan, body: dict[str, Any]) -> dict[str, Any]:
    """`body` (metrics.json) with the scores of the records in `folder`, where the plan's workload asks for scores."""
    if plan.client.workload.get("scoring") is None:
        return body
    from workloads.scoring import score_folder  # two seconds of SciPy, which no other session needs

    try:
        score = score_folder(folder)
    except (SpecError, OSError, KeyError) as error:
        return _judged(body, _rule(None, None, f"the answers cannot be scored: {error}"), {})
    unanswered = score["unanswered"]
    reason = "; ".join(score["reasons"])
    values = {"accuracy_ratio": score.get("accuracy"), "unanswered_ratio": unanswered["ratio"]}
    return _judged(body, _rule(unanswered["ratio"], unanswered["limit"], reason), values)


def caveat(body: dict[str, Any]) -> str:
    """What the score of a session (metrics.json) does not say, in words; empty where nothing is scored or left out."""
    if body.get("metric") != "accuracy_ratio":
        return ""
    return str(body.get("left_out", {}).get("trained_model", ""))


def _rule(value: float | None, limit: float | None, reason: str) -> dict[str, Any]:
    verdict = "fail" if reason else "pass"
    return {
        "rule": "answered",
        "verdict": verdict,
        "value": value,
        "limit": limit,
        "source": "records",
        "reason": reason,
    }


def _judged(body: dict[str, Any], rule: dict[str, Any], values: dict[str, float | None]) -> dict[str, Any]:
    validity = dict(body["validity"])
    validity["rules"] = [*validity["rules"], rule]
    found = body.get("metrics", body.get("diagnostics", {})) | values
    rest = {key: value for key, value in body.items() if key not in ("metrics", "diagnostics")}
    if rule["verdict"] == "fail":
        validity |= {"verdict": "INVALID", "reasons": [*validity["reasons"], f"answered: {rule['reason']}"]}
    name = "metrics" if validity["verdict"] == "VALID" else "diagnostics"
    missing = {key: "no question was answered" for key, value in values.items() if value is None}
    return rest | {"validity": validity, name: found, "metrics_missing": body.get("metrics_missing", {}) | missing}
