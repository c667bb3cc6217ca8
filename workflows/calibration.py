"""How noisy this machine is, and which thresholds it can therefore uphold.

An A/A run measures the same commit again and again. A threshold smaller than twice the distance at which the one-sided
bound lies at its number of sessions is refused: it would pass and fail by chance.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workflows.errors import WorkflowError
from workflows.schema import GateMetric
from workflows.statistics import bound_offset, noise
from workloads.files import read_json, write_json

MIN_SESSIONS = 8
CALIBRATION_SCHEMA = "calibration/1"


@dataclasses.dataclass(frozen=True, slots=True)
class Calibration:
    """The noise of one metric of one cell."""

    cell: str
    metric: str
    values: tuple[float, ...]
    between: float
    """Coefficient of variation between sessions."""
    within: float | None
    """Between passes of one session, pooled; shown, never used for a verdict."""

    def least_regression(self, sessions: int) -> float:
        """The smallest threshold that so many sessions uphold."""
        return 2 * bound_offset(self.between, sessions)

    def sessions_for(self, policy: GateMetric) -> int | None:
        """The fewest sessions that uphold the policy's threshold; None when its maximum does not."""
        candidates = range(policy.min_sessions, policy.max_sessions + 1)
        return next((n for n in candidates if self.least_regression(n) <= policy.max_regression), None)


def calibrate(cell: str, metric: str, values: Sequence[float], passes: Sequence[Sequence[float | None]]) -> Calibration:
    """From the values of sessions of one commit. Raises WorkflowError for fewer than eight."""
    if len(values) < MIN_SESSIONS:
        raise WorkflowError(f"{cell}: a calibration needs {MIN_SESSIONS} sessions and has {len(values)}")
    between = noise(values)
    assert between is not None
    inside = [noise([v for v in own if v]) for own in passes if sum(v is not None for v in own) >= 2]
    squares = [value**2 for value in inside if value is not None]
    return Calibration(cell, metric, tuple(values), between, float(np.sqrt(np.mean(squares))) if squares else None)


def check(calibration: Calibration, policy: GateMetric) -> None:
    """Refuse a threshold that this machine cannot uphold. Raises WorkflowError with what to write instead."""
    name = f"{calibration.cell} {calibration.metric}"
    if calibration.between > policy.max_noise:
        raise WorkflowError(
            f"{name}: sessions vary by {calibration.between:.1%} and max_noise is {policy.max_noise:.1%}; "
            "quieten the machine or lengthen the windows"
        )
    least = calibration.least_regression(policy.min_sessions)
    if least <= policy.max_regression:
        return
    enough = calibration.sessions_for(policy)
    way_out = f"set min_sessions to {enough}" if enough else f"set max_regression to {least:.1%} or more"
    raise WorkflowError(
        f"{name}: {policy.min_sessions} sessions with a variation of {calibration.between:.1%} cannot uphold a "
        f"max_regression of {policy.max_regression:.1%}; {way_out}"
    )


def save(path: Path, found: Sequence[Calibration]) -> None:
    """Write all calibrations of a testbed."""
    body: dict[str, Any] = {"schema": CALIBRATION_SCHEMA, "cells": [dataclasses.asdict(c) for c in found]}
    for cell, calibration in zip(body["cells"], found, strict=True):
        cell["least_regression"] = {str(n): calibration.least_regression(n) for n in (3, 5, 8)}
    write_json(path, body)


def load(path: Path) -> list[Calibration]:
    """All calibrations of a testbed; none when it was never calibrated. Raises WorkflowError for a damaged file."""
    if not path.exists():
        return []
    try:
        return [
            Calibration(
                cell=str(body["cell"]),
                metric=str(body["metric"]),
                values=tuple(float(value) for value in body["values"]),
                between=float(body["between"]),
                within=None if body["within"] is None else float(body["within"]),
            )
            for body in read_json(path)["cells"]
        ]
    except (ValueError, KeyError, TypeError):
        raise WorkflowError(f"{path} cannot be read; delete it, and np1d calibrate writes it anew") from None
