"""The table of `docs/measurements/micro.md` from a report: `python3 -m tools.gpu.micro.table micro.json`."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD = ("op", "implementation", "shape", "us", "TFLOP/s", "TB/s", "of floor", "target", "anchor")


def document(report: dict[str, Any]) -> str:
    """Times, then targets met and missed, then what did not pass."""
    verdicts = [row["verdict"] for row in report["checks"]]
    lines = [
        f"Device: {report.get('device', 'none')}, PyTorch {report.get('torch', 'unknown')}.",
        f"Checks: {verdicts.count('ok')} passed, {len(verdicts) - verdicts.count('ok')} did not.",
        "",
        *table(HEAD, (cells(row) for row in report["times"])),
        "",
        *table(("op", "shape", "target", "best", "by", "verdict"), targets(report["times"])),
    ]
    if report["failures"]:
        failed = ((f["op"], f["impl"], f["reason"].replace("|", "/")) for f in report["failures"])
        lines += ["", *table(("op", "implementation", "did not pass"), failed)]
    return "\n".join(lines) + "\n"


def table(head: tuple[str, ...], body: Any) -> Iterator[str]:
    """A Markdown table."""
    for cells_of_row in (head, ("---",) * len(head), *body):
        yield f"| {' | '.join(cells_of_row)} |"


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """One timed row."""
    us = row["us"]
    if us is None:
        return (row["op"], row["impl"], row["shape"], f"failed: {row.get('error', '')[:80]}", "", "", "", "", "")
    tflops = f"{row['flop'] / us / 1e6:.0f}" if row["flop"] else ""
    target = f"{row['target_us']:.0f}" if row["target_us"] else ""
    rates = (f"{us:.1f}", tflops, f"{row['bytes'] / us / 1e6:.2f}", f"{row['floor_us'] / us:.0%}")
    return (row["op"], row["impl"], row["shape"], *rates, target, row["anchor"])


def targets(times: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Each shape that has a target, with the best that was seen."""
    shapes: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in times:
        if row["target_us"]:
            shapes.setdefault((row["op"], row["shape"]), []).append(row)
    for (op, shape), rows in shapes.items():
        target = rows[0]["target_us"]
        seen = [row for row in rows if row["us"] is not None]
        if not seen:
            yield op, shape, f"{target:.0f}", "", "", "not measured"
            continue
        best = min(seen, key=lambda row: float(row["us"]))
        verdict = "met" if best["us"] <= target else f"missed by {best['us'] / target - 1:.0%}"
        yield op, shape, f"{target:.0f}", f"{best['us']:.1f}", best["impl"], verdict


if __name__ == "__main__":
    print(document(json.loads(Path(sys.argv[1]).read_text())))
