"""Finished sessions as they lie on disk: what was planned, how it ended, what was measured.

Knows the file layout of a run (`status.json`, `plan.json`, `metrics.json`, `client.json`, `provenance.json`) and no
figures or tables. A session that failed or was invalid is kept with its reason: it is data, but never a number.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reports.claims import Cell
from reports.counted import WhatRan, counted, started_unix_s, what_ran
from reports.derived import derived_metrics
from reports.engine_log import Line, step_lines
from reports.json_files import ALTERED, is_altered, is_session, json_of, read_object

Outcome = Literal["ok", "invalid", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One start of the servers. `metrics` is empty unless the outcome is `ok`."""

    cell: Cell
    index: int
    folder: Path
    outcome: Outcome
    reason: str
    plan: dict[str, Any]
    status: dict[str, Any]
    metrics: dict[str, float | None]
    """Those of `metrics.json`, and those that `reports.derived` reads from the engine's log."""
    missing: dict[str, str]
    measured: dict[str, Any]
    """All of `metrics.json`, diagnostics of an invalid session included."""
    client: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def name(self) -> str:
        """`suite/row/workload s<k>`."""
        return f"{self.cell} s{self.index}"

    @property
    def first_reason(self) -> str:
        """The first of the reasons why it is no result; of a failed one the only one."""
        reasons = self.measured.get("validity", {}).get("reasons") or ()
        return str(reasons[0]) if self.outcome == "invalid" and reasons else self.reason

    @property
    def started_unix_s(self) -> float:
        """When it began."""
        return started_unix_s(self.status)

    @property
    def what_ran(self) -> WhatRan:
        """Digests of its plan, prompts aside, and of the code."""
        return what_ran(self.status)

    @property
    def newer(self) -> str:
        """Why a newer attempt than this valid one is no result; empty when there is none."""
        newer = self.status.get("newer") or {}
        return f"attempt {newer['attempt']}, {newer['kind']}: {newer['reason']}" if newer else ""

    @property
    def labels(self) -> dict[str, str]:
        """What is simulated or scaled."""
        labels: dict[str, str] = self.plan.get("labels", {})
        return labels

    def steps(self) -> list[Line]:
        """The engine's per-step samples, oldest first; a torn line is left out."""
        return step_lines(self.folder)


@dataclass(frozen=True, slots=True)
class Results:
    """All ended sessions below one testbed's folder, and how many were planned and have not ended."""

    testbed: str
    sessions: tuple[Session, ...]
    folder: Path = Path()
    not_ended: tuple[str, ...] = ()
    impossible: dict[str, tuple[str, str]] = field(default_factory=dict)
    """`suite/row` -> `not applicable` or `not built`, and why, for rows that cannot run on this testbed."""
    orders: tuple[dict[str, Any], ...] = ()
    """Orders in which sessions were asked for, oldest first: `seed`, `sessions` of each cell, `order` of all."""

    def of(self, cell: Cell) -> list[Session]:
        """Every session of a cell, in order."""
        return [session for session in self.sessions if session.cell == cell]

    def valid(self, cell: Cell) -> list[Session]:
        """The sessions of a cell that may be shown as numbers: valid ones, of the code and settings of the newest."""
        return counted(session for session in self.of(cell) if session.outcome == "ok")

    @property
    def superseded(self) -> list[Session]:
        """Valid sessions of older code or settings than a newer one of their cell; their values are in no number."""
        return [s for s in self.sessions if s.outcome == "ok" and s not in self.valid(s.cell)]

    def values(self, cell: Cell, metric: str) -> list[float]:
        """A metric of each valid session that has it."""
        values = (session.metrics.get(metric) for session in self.valid(cell))
        return [value for value in values if value is not None]

    def absence(self, cell: Cell) -> tuple[str, str]:
        """What a cell without a valid session is, in two words, and why it has none."""
        if sessions := self.of(cell):
            return ("no value", "") if self.valid(cell) else ("no valid session", sessions[-1].reason)
        return self.impossible.get(f"{cell.suite}/{cell.row}", ("not run", "it has no session yet"))

    @property
    def cells(self) -> list[Cell]:
        """Every cell that has a session, in the order of the folders' names."""
        return list(dict.fromkeys(session.cell for session in self.sessions))

    @property
    def not_ok(self) -> list[Session]:
        """Failed and invalid sessions."""
        return [session for session in self.sessions if session.outcome != "ok"]


def load_results(folder: Path) -> Results:
    """Read `results/<testbed>`. A session without `status.json` has not ended; it is named and nothing else.

    A file that cannot be read makes its session a failed one, with the file named as the reason.
    """
    planned = _of_sessions(folder.glob("*/*/*/s*/plan.json"))
    ended = _of_sessions(folder.glob("*/*/*/s*/status.json"))
    folders = {file.parent for file in ended}
    waiting = tuple("/".join(file.parts[-5:-1]) for file in planned if file.parent not in folders)
    sessions = tuple(_session(file.parent) for file in ended)
    return Results(folder.name, sessions, folder, waiting, _impossible(folder / "rows.json"), _orders(folder))


def cell_elsewhere(folder: Path, cell: Cell, like: Session) -> tuple[str, list[Session]]:
    """Valid sessions of a cell on another testbed beside `folder` that serves the same model at the same scale with the
    same engine, and that testbed's name; the first such testbed by name, or an empty name and list."""
    for other in sorted(folder.parent.iterdir()) if folder.parent.is_dir() else ():
        files = _of_sessions(other.glob(f"{cell}/s*/status.json")) if other != folder else []
        sessions = [session for file in files if (session := _session(file.parent)).outcome == "ok"]
        if alike := [session for session in sessions if _kind(session) == _kind(like)]:
            return other.name, counted(alike)
    return "", []


def _kind(session: Session) -> tuple[Any, ...]:
    names = session.plan.get("model", {}).get("name"), session.plan.get("cell", {}).get("engine")
    return (*names, session.labels.get("scale"))


def _orders(folder: Path) -> tuple[dict[str, Any], ...]:
    """Lines of `orders.jsonl`; one that was cut short is left out."""
    try:
        lines = (folder / "orders.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            order = json.loads(line)
            if isinstance(order, dict) and isinstance(order.get("order"), list):
                found.append(order)
    return tuple(found)


def _impossible(file: Path) -> dict[str, tuple[str, str]]:
    """Rows that the workflow says cannot run here; none where it said nothing, as in results of another place."""
    words = {"not_applicable": "not applicable", "not_built": "not built"}
    rows = json_of(file).get("rows")
    known = {name: row for name, row in rows.items() if isinstance(row, dict)} if isinstance(rows, dict) else {}
    return {
        name: (words[row["status"]], str(row.get("reason")))
        for name, row in known.items()
        if row.get("status") in words
    }


def _of_sessions(files: Iterable[Path]) -> list[Path]:
    """Those that lie in sessions' folders, by cell and number."""
    return sorted((file for file in files if is_session(file.parent)), key=_place)


def _place(file: Path) -> tuple[tuple[str, ...], int]:
    return file.parts[-5:-2], int(file.parent.name.removeprefix("s"))


def _session(folder: Path) -> Session:
    files: dict[str, dict[str, Any]] = {}
    unreadable = ""
    for name in ("status", "plan", "metrics", "client", "provenance"):
        file = folder / f"{name}.json"
        files[name] = {}
        if file.exists() or name == "plan":
            try:
                files[name] = read_object(file)
            except ValueError as error:
                unreadable = unreadable or str(error)
    if is_altered(files["metrics"]):
        unreadable = unreadable or ALTERED
    outcome, reason = ("failed", unreadable) if unreadable else _outcome(files["status"], files["metrics"])
    is_ok = outcome == "ok"
    metrics = files["metrics"].get("metrics", {}) if is_ok else {}
    return Session(
        cell=Cell(*folder.parts[-4:-1]),
        index=_place(folder / "status.json")[1],
        folder=folder,
        outcome=outcome,  # type: ignore[arg-type]
        reason=reason,
        plan=files["plan"],
        status=files["status"],
        metrics=metrics | derived_metrics(folder, metrics, files["client"], files["plan"]) if is_ok else {},
        missing=files["metrics"].get("metrics_missing", {}),
        measured=files["metrics"],
        client=files["client"],
        provenance=files["provenance"],
    )


def _outcome(status: dict[str, Any], measured: dict[str, Any]) -> tuple[Outcome, str]:
    if status.get("status") != "ok":
        return ("invalid" if status.get("status") == "invalid" else "failed"), status.get("reason") or "no reason given"
    validity = measured.get("validity", {})
    if validity.get("verdict") != "VALID":
        reasons = "; ".join(str(reason) for reason in validity.get("reasons", []))
        return "invalid", reasons or "no validity was computed"
    return "ok", ""
