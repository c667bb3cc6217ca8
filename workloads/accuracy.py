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

from workloads.client import Target, run_workload
from workloads.files import write_json
from workloads.preparation import NotReadyError
from workloads.scoring import MARGIN, compare_folders, items_of, score_folder
from workloads.spec import ASKED_ONCE, Scoring, SpecError, Workload, resolve

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
    given = {
        "path": data, "sha256": sha256, "skip_shots": questions == 1314, "output_len": max_tokens, "model": model,
        "endpoint": endpoint, "concurrency": concurrency, "passes": runs, **ASKED_ONCE,
    }  # fmt: skip
    count = len(items_of(resolve("gsm8k_5shot", given)))
    return resolve("gsm8k_5shot", given | {"requests_per_pass": min(count, limit or count)})


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
    rules = Scoring(max_unanswered=options.max_unanswered, truncated=options.truncated)
    body = score_folder(options.folder, rules)
    if body["verdict"] != "VALID":
        sys.stderr.write(f"INVALID: {'; '.join(body['reasons'])}\n")
        return 5
    for run in body["runs"]:
        if run["ci95"] is None:
            sys.stdout.write(f"run {run['run']}: nothing was answered\n")
            continue
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
            "--max-unanswered", type=float, default=Scoring().max_unanswered, help="largest share of unanswered items"
        )
        verb.add_argument(
            "--truncated", choices=("unanswered", "last_number"), default="unanswered",
            help="what an answer without an end counts as",
        )  # fmt: skip
    compare = verbs.add_parser("compare", help="compare two scored runs item by item")
    compare.add_argument("first", type=Path, help="the reference")
    compare.add_argument("second", type=Path, help="what must not be worse")
    compare.add_argument("--margin", type=float, default=MARGIN, help="tolerated loss of accuracy")
    compare.add_argument("--out", type=Path, help="JSON file for the comparison")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
