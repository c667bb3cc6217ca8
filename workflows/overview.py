"""Tables for the terminal: what rows there are, and what has been measured of them.

Knows how results lie in folders and nothing of statistics.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from reports.counted import WhatRan, counted, started_unix_s, what_ran
from reports.json_files import ALTERED, is_altered, is_session, unreadable
from workflows.catalog import Catalog
from workflows.resolution import Resolution
from workflows.scored import caveat
from workflows.standing import newer_words
from workloads.files import read_json

ROOT = Path(__file__).resolve().parent.parent
NOT_MEASURED = "not measured"
STYLES = {"runnable": "green", "not_built": "yellow", "not_applicable": "dim", "script_only": "cyan"}


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a session's folder says."""

    folder: Path
    cell: dict[str, Any]
    verdict: str
    """VALID, INVALID, or NOT_MEASURED."""
    metric: str
    value: float | None
    reason: str
    """Why it is no result, or what a result does not say."""
    newer: str = ""
    """A newer attempt than the one that stands, and why it is no result."""
    superseded: str = ""
    """Of a valid result that is in no number, the newer session of its cell that is."""
    status: dict[str, Any] = dataclasses.field(default_factory=dict)
    """`status.json`; empty where it cannot be read."""

    @property
    def started_unix_s(self) -> float:
        """When it began."""
        return started_unix_s(self.status)

    @property
    def what_ran(self) -> WhatRan:
        """Digests of its plan, prompts aside, and of the code."""
        return what_ran(self.status)

    @property
    def testbed(self) -> str:
        """Folder of the testbed under `results/`."""
        return self.folder.parts[-5]

    @property
    def lacks_metrics(self) -> bool:
        """Whether it ended well and its records wait for their metrics."""
        return self.verdict == NOT_MEASURED and self.status["status"] == "ok"

    @property
    def is_good(self) -> bool:
        """Whether the newest attempt is a valid result."""
        return self.verdict == "VALID" and not self.newer


def outcomes(results: Path) -> Iterator[Outcome]:
    """Every session that has a status, cell by cell, in order of its place."""
    for cell in sorted({path.parent.parent for path in results.glob("*/*/*/*/s*/status.json")}):
        yield from outcomes_of_cell(cell)


def outcomes_of_cell(cell: Path) -> list[Outcome]:
    """Every session of one cell's folder that has a status, by number; a valid one that is in no number says why."""
    folders = [file.parent for file in cell.glob("s*/status.json") if is_session(file.parent)]
    found = [_outcome(folder) for folder in sorted(folders, key=lambda folder: int(folder.name[1:]))]
    valid = [outcome for outcome in found if outcome.verdict == "VALID"]
    shown = counted(valid)
    return [_superseded(one, shown[-1]) if one in valid and one not in shown else one for one in found]


def _superseded(outcome: Outcome, by: Outcome) -> Outcome:
    words = f"in no number: {by.folder.name} is newer and ran other {differs(outcome.what_ran, by.what_ran)}"
    return dataclasses.replace(outcome, superseded=words)


def differs(one: WhatRan, other: WhatRan) -> str:
    """`settings`, `code` or both: in what two sessions differ."""
    return " and ".join(word for word, a, b in zip(("settings", "code"), one, other, strict=True) if a != b)


def _outcome(folder: Path) -> Outcome:
    try:
        status = read_json(folder / "status.json")
    except ValueError:
        return Outcome(folder, {}, "INVALID", "", None, "status.json is cut short; run the session again")
    if not isinstance(status, dict) or not {"status", "cell"} <= status.keys():
        return Outcome(folder, {}, "INVALID", "", None, "status.json is no status; run the session again")
    return dataclasses.replace(_judged(folder, status), status=status)


def _judged(folder: Path, status: dict[str, Any]) -> Outcome:
    try:
        body = read_json(folder / "metrics.json")
    except FileNotFoundError:
        missing = "metrics.json is missing; np1d run computes it from the records"
        reason = missing if status["status"] == "ok" else f"{status['kind']}: {status['reason']}"
        return Outcome(folder, status["cell"], NOT_MEASURED, "", None, reason)
    except ValueError:
        reason = "metrics.json is cut short; delete it, and np1d run computes it from the records"
        return Outcome(folder, status["cell"], "INVALID", "", None, reason)
    if damage := ALTERED if is_altered(body) else unreadable(folder):
        return Outcome(folder, status["cell"], "INVALID", "", None, damage)
    value = body.get("metrics", {}).get(body["metric"])
    reasons = "; ".join(body["validity"]["reasons"]) or caveat(body)
    newer = newer_words(body["newer"]) if body.get("newer") else ""
    return Outcome(folder, status["cell"], body["validity"]["verdict"], body["metric"], value, reasons, newer)


def row_table(resolutions: Iterable[Resolution], testbed: str) -> Table:
    """Rows, and whether they run on the testbed."""
    table = Table(title=f"rows on {testbed}", title_justify="left", box=None, pad_edge=False)
    for name in ("row", "here", "question or reason"):
        table.add_column(name, overflow="fold", no_wrap=name != "question or reason")
    for resolution in resolutions:
        text = resolution.reason or resolution.entry.row.question
        style = STYLES[resolution.status]
        table.add_row(resolution.entry.name, Text(resolution.status.replace("_", " "), style), Text(text, style))
    return table


def result_table(found: Iterable[Outcome], catalog: Catalog) -> Table:
    """Sessions, their value and why they are no result where they are none."""
    table = Table(box=None, pad_edge=False)
    for name in ("testbed", "cell", "session", "verdict", "value", "why"):
        table.add_column(name, overflow="fold", no_wrap=name != "why")
    for outcome in found:
        suite, row, workload, session = outcome.folder.parts[-4:]
        value = f"{_digits(outcome.value)} {outcome.metric}" if outcome.value is not None else ""
        style = {"VALID": "green", "INVALID": "red"}.get(outcome.verdict, "yellow")
        testbed = str(outcome.cell.get("testbed") or outcome.testbed)
        why = "; ".join(filter(None, (outcome.reason, outcome.newer, outcome.superseded)))
        table.add_row(testbed, f"{suite}/{row} {workload}", session, Text(outcome.verdict, style), value, why)
    return table


def _digits(value: float) -> str:
    """Four digits or all before the point, so that a ratio of 0.957 is not shown as 1.0."""
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
