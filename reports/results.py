"""Finished sessions as they lie on disk: what was planned, how it ended, what was measured.

Knows the file layout of a run (`status.json`, `plan.json`, `metrics.json`, `provenance.json`, `engine.jsonl`) and no
figures or tables. A session that failed or was invalid is kept with its reason: it is data, but never a number.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from reports.claims import Cell

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
    missing: dict[str, str]
    measured: dict[str, Any]
    """All of `metrics.json`, diagnostics of an invalid session included."""
    provenance: dict[str, Any]

    @property
    def labels(self) -> dict[str, str]:
        """What is simulated or scaled."""
        labels: dict[str, str] = self.plan.get("labels", {})
        return labels

    def steps(self) -> list[dict[str, Any]]:
        """The engine's per-step samples, oldest first; a torn last line is left out."""
        file = self.folder / "engine.jsonl"
        return [*_json_lines(file)] if file.exists() else []


@dataclass(frozen=True, slots=True)
class Results:
    """All sessions below one testbed's folder."""

    testbed: str
    sessions: tuple[Session, ...]

    def of(self, cell: Cell) -> list[Session]:
        """Every session of a cell, in order."""
        return [session for session in self.sessions if session.cell == cell]

    def valid(self, cell: Cell) -> list[Session]:
        """The sessions of a cell that may be shown as numbers."""
        return [session for session in self.of(cell) if session.outcome == "ok"]

    def values(self, cell: Cell, metric: str) -> list[float]:
        """A metric of each valid session that has it."""
        values = (session.metrics.get(metric) for session in self.valid(cell))
        return [value for value in values if value is not None]

    @property
    def cells(self) -> list[Cell]:
        """Every cell that has a session, in the order of the plan files' names."""
        return list(dict.fromkeys(session.cell for session in self.sessions))

    @property
    def not_ok(self) -> list[Session]:
        """Failed and invalid sessions."""
        return [session for session in self.sessions if session.outcome != "ok"]


def load_results(folder: Path) -> Results:
    """Read `results/<testbed>`. A session without `status.json` has not ended and is left out.

    Raises ValueError naming the file when one of them cannot be read.
    """
    found = sorted(folder.glob("*/*/*/s*/status.json"), key=lambda file: (file.parts[-5:-2], _index(file)))
    return Results(folder.name, tuple(_session(file.parent) for file in found))


def _session(folder: Path) -> Session:
    status, plan = _json(folder / "status.json"), _json(folder / "plan.json")
    measured = _json(folder / "metrics.json") if (folder / "metrics.json").exists() else {}
    provenance = _json(folder / "provenance.json") if (folder / "provenance.json").exists() else {}
    outcome, reason = _outcome(status, measured)
    cell = plan["cell"]
    return Session(
        cell=Cell(cell["suite"], cell["row"], cell["workload"]),
        index=int(cell["session"]),
        folder=folder,
        outcome=outcome,
        reason=reason,
        plan=plan,
        status=status,
        metrics=measured.get("metrics", {}) if outcome == "ok" else {},
        missing=measured.get("metrics_missing", {}),
        measured=measured,
        provenance=provenance,
    )


def _outcome(status: dict[str, Any], measured: dict[str, Any]) -> tuple[Outcome, str]:
    if status.get("status") != "ok":
        return ("invalid" if status.get("status") == "invalid" else "failed"), status.get("reason") or "no reason given"
    validity = measured.get("validity", {})
    if validity.get("verdict") != "VALID":
        reasons = "; ".join(str(reason) for reason in validity.get("reasons", []))
        return "invalid", reasons or "no validity was computed"
    return "ok", ""


def _index(status_file: Path) -> int:
    return int(status_file.parent.name.removeprefix("s"))


def _json(file: Path) -> dict[str, Any]:
    try:
        loaded: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read ({error}); run that session again") from error
    return loaded


def _json_lines(file: Path) -> Iterator[dict[str, Any]]:
    with file.open() as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                continue
