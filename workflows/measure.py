"""`metrics.json` of one session, whatever became of it: a failed session is data with a reason, and never a value.

python -m workflows.measure results/cpu/decode/baseline/sp99_9/s0
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reports.json_files import sealed
from workflows.bench import bench_metrics, is_bench
from workflows.errors import WorkflowError
from workflows.plan import Plan, read_plan
from workflows.scored import caveat, with_score
from workflows.standing import newer_words, settle
from workloads.files import read_json, write_json
from workloads.metrics import METRICS_FILE, METRICS_SCHEMA, write_session_metrics


def measure(folder: Path) -> dict[str, Any]:
    """Write and return metrics.json of a session's folder. An earlier valid attempt stands before a failed newer one.

    Raises WorkflowError when the session left no status.
    """
    plan = read_plan(folder / "plan.json")
    try:
        status = read_json(folder / "status.json")
    except (FileNotFoundError, ValueError):
        raise WorkflowError(f"{folder} has no whole status.json; run the session again") from None
    if status["status"] == "ok":
        body = _measured(folder, plan)
    else:
        body = _failed(plan, status)
    body = settle(folder, status, body, lambda attempt: _measured(attempt, read_plan(attempt / "plan.json")))
    body = sealed(body)
    write_json(folder / METRICS_FILE, body)
    return body


def _measured(folder: Path, plan: Plan) -> dict[str, Any]:
    if is_bench(plan):
        return bench_metrics(folder, plan) | _facts(plan)
    engine, gpu = folder / "engine.jsonl", folder / "gpu.jsonl"
    try:
        body = write_session_metrics(
            folder,
            engine=[engine] if engine.exists() and engine.stat().st_size else (),
            gpu=gpu if gpu.exists() else None,
            restarts=0,
            labels=plan.labels,
        )
    except (ValueError, OSError) as error:
        return _failed(plan, {"kind": "records", "reason": f"the records cannot be read: {error}"})
    return with_score(folder, plan, body) | _facts(plan)


def _failed(plan: Plan, status: dict[str, Any]) -> dict[str, Any]:
    reason = f"{status['kind']}: {status['reason']}"
    rule = {
        "rule": "session",
        "verdict": "fail",
        "value": status["kind"],
        "limit": "ok",
        "source": "supervisor",
        "reason": status["reason"],
    }
    return {
        "schema": METRICS_SCHEMA,
        "validity": {"verdict": "INVALID", "reasons": [f"session: {reason}"], "rules": [rule], "warnings": []},
        "passes": [],
        "labels": plan.labels,
        "diagnostics": {},
        "metrics_missing": {},
        **_facts(plan),
    }


def _facts(plan: Plan) -> dict[str, Any]:
    return {
        "cell": plan.cell.model_dump(),
        "key": plan.key,
        "metric": plan.metric,
        "published": plan.published,
        "left_out": plan.left_out,
        "conditions": plan.conditions,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. An INVALID session is no error here."""
    parser = argparse.ArgumentParser(prog="python -m workflows.measure", description="Write a session's metrics.json.")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    try:
        body = measure(options.folder)
    except WorkflowError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    verdict = body["validity"]
    found = body.get("metrics", {}).get(body["metric"])
    value = f" {body['metric']} = {found:.4g}" if found is not None else ""
    name = f"{body['cell']['suite']}/{body['cell']['row']} {body['cell']['workload']} {options.folder.name}"
    newer = f"; {newer_words(body['newer'])}" if body.get("newer") else ""
    score = f" ({caveat(body)})" if value and caveat(body) else ""
    reasons = "".join(f"; {reason}" for reason in verdict["reasons"])
    sys.stderr.write(f"{name}: {verdict['verdict']}{value}{score}{reasons}{newer}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
