"""The gate's verdict as JSON for programs, Markdown for a pull request, and JUnit XML for a CI page."""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workflows.gate import EXIT_CODES, GatedCell
from workflows.statistics import Verdict, bca, rank_p
from workloads.files import write_atomically, write_bytes, write_json

GATE_SCHEMA = "gate/1"


def write_all(cells: Sequence[GatedCell], verdict: Verdict, facts: dict[str, Any], out: Path) -> None:
    """`out` (JSON), and beside it `.md` and `.xml`."""
    body = as_json(cells, verdict, facts)
    write_json(out, body)
    write_atomically(out.with_suffix(".md"), lambda path: path.write_text(as_markdown(cells, verdict, facts)))
    write_bytes(out.with_suffix(".xml"), as_junit(cells))


def as_json(cells: Sequence[GatedCell], verdict: Verdict, facts: dict[str, Any]) -> dict[str, Any]:
    """Everything that the verdict rests on."""
    return {
        "schema": GATE_SCHEMA,
        "verdict": verdict,
        "exit_code": EXIT_CODES[verdict],
        **facts,
        "cells": [_cell_json(cell) for cell in cells],
    }


def _cell_json(cell: GatedCell) -> dict[str, Any]:
    comparison, direction = cell.comparison, cell.policy.direction
    return {
        "cell": cell.name,
        "metric": cell.metric,
        "verdict": cell.verdict,
        "ratio": comparison.ratio,
        "interval": comparison.interval,
        "interval_bca": bca(cell.candidate, cell.baseline, direction, is_paired=cell.is_paired),
        "lower": comparison.lower,
        "upper": comparison.upper,
        "p_worse": comparison.p_worse,
        "p_adjusted": cell.p_adjusted,
        "p_rank": rank_p(cell.candidate, cell.baseline, direction, is_paired=cell.is_paired),
        "method": comparison.method,
        "candidate": cell.candidate,
        "baseline": cell.baseline,
        "ratios": cell.ratios if cell.is_paired else None,
        "noise": cell.noise,
        "measured": cell.how,
        "confirmation_ratio": cell.confirmation,
        "policy": cell.policy.model_dump(),
        "reason": reason(cell),
    }


def reason(cell: GatedCell) -> str:
    """One sentence for a person."""
    comparison, tolerated = cell.comparison, cell.policy.max_regression
    if cell.invalid:
        return f"a session is no result: {cell.invalid}"
    if comparison.ratio is None:
        return cell.note or "there is nothing to compare with"
    change = f"{(comparison.ratio - 1) * 100:+.1f} %"
    if cell.verdict == "PASS":
        return f"{change}; a loss of {tolerated:.0%} or more is ruled out"
    if cell.verdict == "FAIL":
        fresh = ""
        if cell.confirmation is not None:
            what = "pair" if cell.is_paired else "session"
            fresh = f", confirmed by a fresh {what} ({(cell.confirmation - 1) * 100:+.1f} %)"
        return f"{change}; a loss, and more than the tolerated {tolerated:.0%}{fresh}"
    return f"{change}; {cell.note or 'neither a loss nor its absence is certain'}"


def as_markdown(cells: Sequence[GatedCell], verdict: Verdict, facts: dict[str, Any]) -> str:
    """A table that fits a comment, and how to read its numbers."""
    lines = [f"**Throughput gate: {verdict}**", "", "| cell | metric | verdict | ratio | 95 % interval | n | p | why |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for cell in cells:
        comparison = cell.comparison
        ratio = "" if comparison.ratio is None else f"{comparison.ratio:.3f}"
        interval = (
            "" if comparison.interval is None else f"{comparison.interval[0]:.3f} to {comparison.interval[1]:.3f}"
        )
        sizes = f"{comparison.num_candidate} v {comparison.num_baseline}"
        lines.append(
            f"| {cell.name} | {cell.metric} | {cell.verdict} | {ratio} | {interval} | {sizes} | {_chances(cell)} | "
            f"{reason(cell)} |"
        )
    if any(cell.comparison.p_worse is not None for cell in cells):
        lines += ["", _METHOD]
    if measured := sorted({cell.how for cell in cells if cell.how}):
        lines += ["", f"measured: {'; '.join(measured)}"]
    lines += ["", *(f"{key}: {value}  " for key, value in facts.items() if isinstance(value, str | int | float))]
    return "\n".join(lines) + "\n"


_METHOD = (
    "ratio: candidate over baseline, above 1 is better; interval: Student's t on logarithms, of the ratios of pairs "
    "where both ran in turn, else Welch's of sessions; p: chance of such a loss without a change, then corrected for "
    "all cells (Holm), then by ranks alone (from five sessions a side on; decides nothing)"
)


def _chances(cell: GatedCell) -> str:
    by_rank = rank_p(cell.candidate, cell.baseline, cell.policy.direction, is_paired=cell.is_paired)
    found = (cell.comparison.p_worse, cell.p_adjusted, by_rank)
    return " / ".join(f"{p:.2g}" for p in found if p is not None)


def as_junit(cells: Sequence[GatedCell]) -> bytes:
    """One test case for each cell: FAIL is a failure, INVALID an error, INCONCLUSIVE a skip."""
    suite = ET.Element("testsuite", name="np1d gate", tests=str(len(cells)))
    counts = {"FAIL": 0, "INVALID": 0, "INCONCLUSIVE": 0}
    tags = {"FAIL": "failure", "INVALID": "error", "INCONCLUSIVE": "skipped"}
    for cell in cells:
        case = ET.SubElement(suite, "testcase", classname="np1d.gate", name=f"{cell.name} {cell.metric}")
        if cell.verdict in tags:
            counts[cell.verdict] += 1
            ET.SubElement(case, tags[cell.verdict], message=reason(cell))
    suite.set("failures", str(counts["FAIL"]))
    suite.set("errors", str(counts["INVALID"]))
    suite.set("skipped", str(counts["INCONCLUSIVE"]))
    ET.indent(suite)
    return ET.tostring(suite, encoding="utf-8", xml_declaration=True)
