"""Which attempt stands as a session's result: the newest, unless it failed and an earlier one of its plan is valid.

Every attempt keeps its own files, so a result can be put back at any time; a result's files are links to an attempt's.
A failed, invalid or cut-off attempt never hides a valid result, and `status.json` then names it under `newer`.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from reports.json_files import is_session
from workloads.files import read_json, write_json

RESULTS = (
    "plan.json",
    "requests.parquet",
    "chunks.parquet",
    "client.json",
    "engine.jsonl",
    "gpu.jsonl",
    "provenance.json",
    "accuracy.json",
    "items.csv",
    "micro.json",
    "operating_point.json",
)
"""Files of a result, in the order in which they take their places."""
AGAIN = "measure_again"
"""File of a session whose result was taken away on purpose; it names the newest attempt of that time."""

Body = dict[str, Any]


def settle(out: Path, status: Body, body: Body, compute: Callable[[Path], Body]) -> Body:
    """The metrics that stand: `body`, those of the attempt in `status`, or those of an earlier valid attempt.

    `compute` gives the metrics of an attempt's folder. An earlier attempt that stands gets its files put in place.
    """
    newer = status.get("newer")
    if body["validity"]["verdict"] != "VALID":
        for attempt in finished(out, status.get("key", ""), before=status.get("attempt", "0")):
            earlier = compute(attempt)
            if earlier["validity"]["verdict"] == "VALID":
                newer = newer or _newer(status, body)
                put(attempt, out, newer)
                return earlier | {"newer": newer}
    return body | ({"newer": newer} if newer else {})


def finished(out: Path, key: str | None = None, *, before: str | None = None) -> Iterator[Path]:
    """Attempts of a session that ended well, newest first; with a key, only those of a plan with that key."""
    for attempt in reversed(attempts(out)):
        if before is not None and int(attempt.name) >= int(before):
            continue
        status = _status(attempt)
        if status.get("status") == "ok" and key in (None, status.get("key")):
            yield attempt


def attempts(out: Path) -> list[Path]:
    """All attempts of a session in their order."""
    folder = out / "attempts"
    found = [path for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name))


def put(attempt: Path, out: Path, newer: Body | None) -> None:
    """Make a finished attempt the result. A plan that is there stays: its key is the same."""
    for name in RESULTS:
        if name != "plan.json" or not (out / name).exists():
            place(attempt / name, out / name)
    if newer:
        write_json(out / "status.json", read_json(attempt / "status.json") | {"newer": newer})
    else:
        place(attempt / "status.json", out / "status.json")


def newer_words(newer: Body) -> str:
    """What a reader is told of a newer attempt that does not stand."""
    return f"a newer attempt ({newer['attempt']}) is no result: {newer['kind']}: {newer['reason']}"


def take_away(out: Path) -> None:
    """Let the next run measure this session again; attempts stay."""
    tries = attempts(out)
    if tries:
        (out / AGAIN).write_text(tries[-1].name)
    for name in ("status.json", "metrics.json"):
        (out / name).unlink(missing_ok=True)


def restore(results: Path) -> list[Path]:
    """Give sessions below `results` their last finished result back where a later attempt left them without one.

    Snakemake takes an output away before it makes it anew, so an interrupt would otherwise hide a result that is still
    there. A result that was taken away on purpose has no later attempt and stays away. Returns the folders; whether
    such a result is still wanted is for the next run to decide.
    """
    restored = []
    for folder in sorted(results.glob("*/*/*/*/s*/attempts")):
        out, tries = folder.parent, attempts(folder.parent)
        if not is_session(out):
            continue
        if (out / "status.json").exists() or not tries or _was_taken_away(out, tries[-1]):
            continue
        last = next(finished(out), None)
        if last is not None and last != tries[-1]:
            put(last, out, _ended(tries[-1]))
            restored.append(out)
    return restored


def place(source: Path | None, target: Path) -> None:
    """Give `target` the content of `source` in one step; without a source there is no target."""
    if source is None or not source.exists():
        target.unlink(missing_ok=True)
        return
    if target.exists() and target.read_bytes() == source.read_bytes():
        return
    beside = target.with_name(f".{target.name}.new")
    beside.unlink(missing_ok=True)
    os.link(source, beside)
    beside.replace(target)


def _newer(status: Body, body: Body) -> Body:
    """What is said of an attempt that does not stand."""
    failed = status["status"] != "ok"
    return {
        "attempt": status["attempt"],
        "kind": status["kind"] if failed else "invalid",
        "reason": status["reason"] if failed else "; ".join(body["validity"]["reasons"]),
        "started_unix_s": status.get("started_unix_s"),
    }


def _ended(attempt: Path) -> Body | None:
    """`_newer` of an attempt that says why it failed; None for one that was cut off or interrupted."""
    status = _status(attempt)
    if status.get("status", "ok") == "ok" or status["kind"] == "interrupted":
        return None
    return _newer(status | {"attempt": attempt.name}, {})


def _was_taken_away(out: Path, newest: Path) -> bool:
    marker = out / AGAIN
    return marker.exists() and marker.read_text().strip() == newest.name


def _status(attempt: Path) -> Body:
    try:
        status: Body = read_json(attempt / "status.json")
    except (OSError, ValueError):
        return {}
    return status
