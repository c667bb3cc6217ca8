"""From the records of a run of questions to scores: every item, every run, and two runs compared item by item.

Works for every source whose answers are known (`workloads.traffic.ItemSource`). A request that failed, or that was cut
off before an answer, is *unanswered*: never a wrong answer, reported apart, and too many make the score INVALID. Where
the workload says so, an answer that was cut off is scored by the last number in it, as the published evaluation does.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from statsmodels.stats.proportion import proportion_confint

from workloads.client_facts import CLIENT_FILE, read_client_facts
from workloads.files import read_json, write_atomically, write_json
from workloads.numbers import answer_of, cut_at_stops, last_number
from workloads.paired import Paired, compare_pairs
from workloads.records import read_requests
from workloads.sources import source_for
from workloads.spec import Scoring, SpecError, Workload, parse
from workloads.traffic import Item, ItemSource

ACCURACY_SCHEMA = "accuracy/1"
ACCURACY_FILE = "accuracy.json"
ITEMS_FILE = "items.csv"
MARGIN = 0.015
"""Loss of accuracy that the comparison of two stacks tolerates."""


def items_of(workload: Workload) -> Sequence[Item]:
    """What the workload asks, in order. Raises SpecError when its answers are not known, or its file is absent."""
    source = source_for(workload)
    if not isinstance(source, ItemSource):
        raise SpecError(f"workload {workload.name} cannot be scored: source {workload.source.kind} knows no answers")
    return source.items


def score_folder(folder: Path, scoring: Scoring | None = None) -> dict[str, Any]:
    """Score the records of a run; writes the items and accuracy.json, and returns the latter. Raises SpecError."""
    facts = read_client_facts(folder / CLIENT_FILE)
    workload = parse(facts["workload"])
    rules = scoring or workload.scoring or Scoring()
    items = score_items(read_requests(folder), items_of(workload), workload.sampling.stop, truncated=rules.truncated)
    body = summary(items, workload, rules)
    write_atomically(folder / ITEMS_FILE, lambda path: items.to_csv(path, index=False))
    write_json(folder / ACCURACY_FILE, body)
    return body


def score_items(
    requests: pd.DataFrame, asked: Sequence[Item], stops: Sequence[str], *, truncated: str = "unanswered"
) -> pd.DataFrame:
    """One row an item and run: question, gold, answer, status and whether it is correct (null when unanswered)."""
    rows = []
    records: list[Any] = list(requests[requests["phase"] == "measured"].itertuples())
    for record in records:
        item = asked[int(record.conversation) % len(asked)]
        gold = last_number(item.answer)
        text = "" if pd.isna(record.output_text) else cut_at_stops(str(record.output_text), stops)
        status, answer = _status(record, text)
        is_answered = status in ("answered", "no_number") or (status == "truncated" and truncated == "last_number")
        rows.append(
            {
                "run": record.pass_index,
                "question": item.index,
                "gold": str(gold),
                "answer": None if answer is None else str(answer),
                "status": status,
                "correct": bool(answer == gold) if is_answered else None,
                "correct_by_last_number": bool(last_number(text) == gold) if is_answered else None,
                "finish_reason": record.finish_reason,
                "output_tokens": record.output_tokens,
                "error": record.error,
                "text": text,
            }
        )
    return pd.DataFrame(rows, columns=_COLUMNS)


def summary(items: pd.DataFrame, workload: Workload, scoring: Scoring) -> dict[str, Any]:
    """What accuracy.json holds."""
    per_run = [_run_summary(int(run), items[items["run"] == run]) for run in sorted(items["run"].unique())]
    planned = workload.passes * workload.num_measured
    unanswered = int(items["correct"].isna().sum()) + planned - len(items)
    share, limit = unanswered / planned, scoring.max_unanswered
    is_valid = share <= limit and len(per_run) == workload.passes
    counts = items["status"].value_counts()
    reason = f"{unanswered} of {planned} items are unanswered ({share:.2%}, limit {limit:.2%})"
    right = sum(run["num_correct"] for run in per_run)
    return {
        "schema": ACCURACY_SCHEMA,
        "verdict": "VALID" if is_valid else "INVALID",
        "reasons": [] if is_valid else [reason],
        "workload": workload.name,
        "num_items": workload.num_measured,
        "num_runs": workload.passes,
        "shots": getattr(workload.source, "shots", None),
        "truncated": scoring.truncated,
        "unanswered": {"count": unanswered, "ratio": share, "limit": limit},
        "status_counts": {str(status): int(n) for status, n in counts.items()},
        **({"accuracy": right / (planned - unanswered)} if is_valid and planned > unanswered else {}),
        ("runs" if is_valid else "diagnostics"): per_run,
        "changed_between_runs": _changed(items),
    }


def compare_folders(first: Path, second: Path, *, margin: float = MARGIN) -> dict[str, Any]:
    """The paired comparison of two scored runs: is the second no worse than the first? Raises SpecError."""
    for folder in (first, second):
        body = read_json(folder / ACCURACY_FILE)
        if body["verdict"] != "VALID":
            raise SpecError(f"{folder} is INVALID ({'; '.join(body['reasons'])}): there is nothing to compare")
    return compare_pairs(pair_items(read_items(first), read_items(second)), margin=margin)


def pair_items(first: pd.DataFrame, second: pd.DataFrame) -> Paired:
    """Counts over the items that both answered, matched by run and question. Raises SpecError when none match."""
    keys = ["run", "question"]
    both = first[[*keys, "correct"]].merge(second[[*keys, "correct"]], on=keys, suffixes=("_a", "_b"))
    answered = both.dropna()
    if answered.empty:
        raise SpecError("the two runs have no item in common that both answered")
    a, b = answered["correct_a"].astype(bool), answered["correct_b"].astype(bool)
    return Paired(
        both=int((a & b).sum()),
        only_first=int((a & ~b).sum()),
        only_second=int((~a & b).sum()),
        neither=int((~a & ~b).sum()),
        left_out=len(both) - len(answered),
    )


def read_items(folder: Path) -> pd.DataFrame:
    """The scored items of a folder."""
    items = pd.read_csv(folder / ITEMS_FILE, dtype={"gold": str, "answer": str})
    items["correct"] = items["correct"].map({True: True, False: False, "True": True, "False": False})
    return items


_COLUMNS = [
    "run", "question", "gold", "answer", "status", "correct", "correct_by_last_number", "finish_reason",
    "output_tokens", "error", "text",
]  # fmt: skip


def _status(record: Any, text: str) -> tuple[str, Any]:
    if not record.ok:
        return "error", None
    answer = answer_of(text)
    if record.finish_reason == "length" and "####" not in text:
        return "truncated", answer
    return ("answered", answer) if answer is not None else ("no_number", None)


def _run_summary(run: int, items: pd.DataFrame) -> dict[str, Any]:
    answered = items[items["correct"].notna()]
    right = int(answered["correct"].astype(bool).sum())
    count = len(answered)
    interval = [float(x) for x in proportion_confint(right, count, method="wilson")] if count else None
    by_last = int(answered["correct_by_last_number"].astype(bool).sum())
    return {
        "run": run,
        "num_answered": count,
        "num_correct": right,
        "accuracy": right / count if count else None,
        "ci95": interval,
        "accuracy_by_last_number": by_last / count if count else None,
        "accuracy_with_unanswered_as_wrong": right / len(items),
        "output_tokens_mean": None if items["output_tokens"].isna().all() else float(items["output_tokens"].mean()),
    }


def _changed(items: pd.DataFrame) -> int | None:
    """Questions whose correctness differs between runs; None with one run."""
    if items["run"].nunique() < 2:
        return None
    spread = items.dropna(subset=["correct"]).groupby("question")["correct"].nunique()
    return int((spread > 1).sum())
