"""GSM8K accuracy: ask through the OpenAI endpoint, score every item, compare two stacks item by item.

    python -m workloads.accuracy run --url URL --data test.jsonl --out FOLDER [--questions 1314] [--runs 2]
    python -m workloads.accuracy score FOLDER
    python -m workloads.accuracy compare FOLDER_A FOLDER_B [--margin 0.015] [--out comparison.json]

`1314` asks what is no worked example (the published protocol), `1319` asks all. A request that failed or was cut off
before an answer is *unanswered*: never a wrong answer, reported apart, and too many of them make the result INVALID.
FOLDER gets the client's records, `items.csv` (one row an item and run) and `accuracy.json`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from statsmodels.stats.proportion import proportion_confint

from workloads.client import Target, run_workload
from workloads.client_facts import CLIENT_FILE, read_client_facts
from workloads.files import read_json, write_atomically, write_json
from workloads.numbers import answer_of, cut_at_stops, last_number
from workloads.paired import Paired, compare_pairs
from workloads.preparation import NotReadyError
from workloads.records import read_requests
from workloads.sources.gsm8k import Question, asked_questions, load_questions
from workloads.spec import Gsm8kSource, SpecError, Workload, parse, resolve

ACCURACY_SCHEMA = "accuracy/1"
ACCURACY_FILE = "accuracy.json"
ITEMS_FILE = "items.csv"
MAX_UNANSWERED = 0.005
STOPS = ("Question", "Assistant:", "<|separator|>")
PUBLISHED_SHA256 = "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"


def accuracy_workload(
    data: str,
    *,
    sha256: str | None = PUBLISHED_SHA256,
    questions: int = 1314,
    runs: int = 2,
    concurrency: int = 64,
    max_tokens: int = 512,
    endpoint: str = "completions",
    model: str = "default",
    limit: int | None = None,
) -> Workload:
    """The workload that asks the questions `runs` times. Raises SpecError.

    `questions` is 1314 (examples left out) or 1319 (all); `limit` asks only the first so many.
    """
    if questions not in (1314, 1319):
        raise SpecError(f"questions is 1314 (without the examples) or 1319 (all), not {questions}")
    base = resolve("gsm8k_5shot", {"path": data, "sha256": sha256, "output_len": max_tokens, "model": model})
    skip = questions == 1314
    count = len(asked_questions(load_questions(data, sha256), 5, skip_shots=skip))
    body = base.model_dump(mode="json")
    body["source"] |= {"skip_shots": skip}
    body["load"] |= {"concurrency": concurrency, "handover": False, "keep_full": False}
    body |= {
        "passes": runs,
        "requests_per_pass": min(count, limit or count),
        "warmup_requests": 0,
        "endpoint": endpoint,
    }
    return parse(body)


def score_folder(folder: Path, *, max_unanswered: float = MAX_UNANSWERED) -> dict[str, Any]:
    """Score the records of a run; writes the items and accuracy.json, and returns the latter."""
    facts = read_client_facts(folder / CLIENT_FILE)
    workload = parse(facts["workload"])
    source = workload.source
    if not isinstance(source, Gsm8kSource):
        raise SpecError(f"{folder} holds a run of {workload.name}, not of GSM8K")
    asked = asked_questions(load_questions(source.path, source.sha256), source.shots, skip_shots=source.skip_shots)
    items = score_items(read_requests(folder), asked, workload.sampling.stop)
    body = summary(items, workload, max_unanswered=max_unanswered)
    write_atomically(folder / ITEMS_FILE, lambda path: items.to_csv(path, index=False))
    write_json(folder / ACCURACY_FILE, body)
    return body


def score_items(requests: pd.DataFrame, asked: Sequence[Question], stops: Sequence[str]) -> pd.DataFrame:
    """One row an item and run: question, gold, answer, status and whether it is correct (null when unanswered)."""
    rows = []
    records: list[Any] = list(requests[requests["phase"] == "measured"].itertuples())
    for record in records:
        question = asked[int(record.conversation) % len(asked)]
        gold = last_number(question.answer)
        text = "" if pd.isna(record.output_text) else cut_at_stops(str(record.output_text), stops)
        status, answer = _status(record, text)
        is_answered = status in ("answered", "no_number")
        rows.append(
            {
                "run": record.pass_index,
                "question": question.index,
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


def summary(items: pd.DataFrame, workload: Workload, *, max_unanswered: float) -> dict[str, Any]:
    """What accuracy.json holds."""
    per_run = [_run_summary(int(run), items[items["run"] == run]) for run in sorted(items["run"].unique())]
    planned = workload.passes * workload.num_measured
    unanswered = int(items["correct"].isna().sum()) + planned - len(items)
    share = unanswered / planned
    is_valid = share <= max_unanswered and len(per_run) == workload.passes
    counts = items["status"].value_counts()
    reason = f"{unanswered} of {planned} items are unanswered ({share:.2%}, limit {max_unanswered:.2%})"
    return {
        "schema": ACCURACY_SCHEMA,
        "verdict": "VALID" if is_valid else "INVALID",
        "reasons": [] if is_valid else [reason],
        "num_items": workload.num_measured,
        "num_runs": workload.passes,
        "shots": workload.source.shots if isinstance(workload.source, Gsm8kSource) else None,
        "unanswered": {"count": unanswered, "ratio": share, "limit": max_unanswered},
        "status_counts": {str(status): int(n) for status, n in counts.items()},
        ("runs" if is_valid else "diagnostics"): per_run,
        "changed_between_runs": _changed(items),
    }


def compare_folders(first: Path, second: Path, *, margin: float) -> dict[str, Any]:
    """The paired comparison of two scored runs: is the second no worse than the first? Raises SpecError."""
    for folder in (first, second):
        body = read_json(folder / ACCURACY_FILE)
        if body["verdict"] != "VALID":
            raise SpecError(f"{folder} is INVALID ({'; '.join(body['reasons'])}): there is nothing to compare")
    paired = pair_items(_read_items(first), _read_items(second))
    return compare_pairs(paired, margin=margin)


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


_COLUMNS = [
    "run", "question", "gold", "answer", "status", "correct", "correct_by_last_number", "finish_reason",
    "output_tokens", "error", "text",
]  # fmt: skip


def _status(record: Any, text: str) -> tuple[str, Any]:
    if not record.ok:
        return "error", None
    answer = answer_of(text)
    if record.finish_reason == "length" and "####" not in text:
        return "truncated", None
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


def _read_items(folder: Path) -> pd.DataFrame:
    items = pd.read_csv(folder / ITEMS_FILE, dtype={"gold": str, "answer": str})
    items["correct"] = items["correct"].map({True: True, False: False, "True": True, "False": False})
    return items


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit codes: 0 done, 2 a mistake of the user, 3 not ready, 5 INVALID."""
    options = _parser().parse_args(arguments)
    try:
        return {"run": _run, "score": _score, "compare": _compare}[options.verb](options)
    except (SpecError, FileNotFoundError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except NotReadyError as error:
        sys.stderr.write(f"error: {error}\n")
        return 3


def _run(options: argparse.Namespace) -> int:
    workload = accuracy_workload(
        options.data,
        sha256=None if options.any_data else PUBLISHED_SHA256,
        questions=options.questions,
        runs=options.runs,
        concurrency=options.concurrency,
        max_tokens=options.max_tokens,
        endpoint=options.endpoint,
        model=options.model,
        limit=options.limit,
    )
    target = Target(url=options.url, flush_urls=tuple(options.flush_url))
    run_workload(workload, target, options.out, progress=not options.no_progress)
    options.folder = options.out
    return _score(options)


def _score(options: argparse.Namespace) -> int:
    body = score_folder(options.folder, max_unanswered=options.max_unanswered)
    if body["verdict"] != "VALID":
        sys.stderr.write(f"INVALID: {'; '.join(body['reasons'])}\n")
        return 5
    for run in body["runs"]:
        low, high = run["ci95"]
        sys.stdout.write(f"run {run['run']}: {run['accuracy']:.4f} [{low:.4f}, {high:.4f}] of {run['num_answered']}\n")
    return 0


def _compare(options: argparse.Namespace) -> int:
    body = compare_folders(options.first, options.second, margin=options.margin)
    if options.out:
        write_json(options.out, body)
    sys.stdout.write(f"{body['verdict']}: {body['sentence']}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workloads.accuracy", description="GSM8K accuracy of a server.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="ask and score")
    run.add_argument("--url", required=True, help="server or router")
    run.add_argument("--data", required=True, help="path of GSM8K's test.jsonl")
    run.add_argument("--any-data", action="store_true", help="accept a file that is not the published one")
    run.add_argument("--out", type=Path, required=True, help="folder for records and scores")
    run.add_argument("--questions", type=int, default=1314, help="1314 (without the examples) or 1319 (all)")
    run.add_argument("--limit", type=int, help="ask only the first so many")
    run.add_argument("--runs", type=int, default=2, help="times to ask everything")
    run.add_argument("--concurrency", type=int, default=64, help="requests in flight")
    run.add_argument("--max-tokens", type=int, default=512, help="longest answer")
    run.add_argument("--endpoint", choices=("completions", "chat", "generate"), default="completions")
    run.add_argument("--model", default="default", help="model name to send")
    run.add_argument("--flush-url", action="append", default=[], help="server to flush before each run; repeat")
    run.add_argument("--no-progress", action="store_true", help="print nothing but the result")
    score = verbs.add_parser("score", help="score the records of a run again")
    score.add_argument("folder", type=Path)
    for verb in (run, score):
        verb.add_argument(
            "--max-unanswered", type=float, default=MAX_UNANSWERED, help="largest share of unanswered items"
        )
    compare = verbs.add_parser("compare", help="compare two scored runs item by item")
    compare.add_argument("first", type=Path, help="the reference")
    compare.add_argument("second", type=Path, help="what must not be worse")
    compare.add_argument("--margin", type=float, default=0.015, help="tolerated loss of accuracy")
    compare.add_argument("--out", type=Path, help="JSON file for the comparison")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
