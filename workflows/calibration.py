"""How noisy this machine is, and which thresholds it can therefore uphold.

An A/A run measures the same commit again and again: in pairs, as a gate against a base commit does, or session by
session for gates against a store. A threshold smaller than twice the distance at which the one-sided bound lies at its
number of sessions or pairs would pass and fail by chance: a gate then measures as many as uphold the threshold, and is
refused where its policy allows no so many.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workflows.errors import WorkflowError
from workflows.schema import GateMetric
from workflows.statistics import bound_offset, compare_paired, noise, paired_bound_offset
from workloads.files import read_json, write_json

MIN_SESSIONS = 8
CALIBRATION_SCHEMA = "calibration/1"


@dataclasses.dataclass(frozen=True, slots=True)
class Calibration:
    """The noise of one metric of one cell."""

    cell: str
    metric: str
    values: tuple[float, ...]
    """Of sessions; of pairs, the ratio of their two sessions."""
    between: float
    """Coefficient of variation between them."""
    within: float | None
    """Between passes of one session, pooled; shown, never used for a verdict."""
    is_paired: bool = False

    @property
    def kind(self) -> tuple[str, str, bool]:
        """What it is the noise of."""
        return (self.cell, self.metric, self.is_paired)

    @property
    def replicates(self) -> str:
        """What is counted, as a person says it."""
        return "pairs" if self.is_paired else "sessions"

    def least_regression(self, count: int) -> float:
        """The smallest threshold that so many sessions or pairs uphold."""
        return 2 * (paired_bound_offset if self.is_paired else bound_offset)(self.between, count)

    def sentence(self, policy: GateMetric) -> str:
        """What was found, for a person."""
        within = "" if self.within is None else f", {self.within:.2%} between the passes of a session"
        enough = self.sessions_for(policy)
        needs = f"a gate needs {enough} at least" if enough else "a gate is refused"
        equal = ""
        if self.is_paired:
            low, high = compare_paired([(value, 1.0) for value in self.values], "higher").interval or (0.0, 0.0)
            equal = f", their mean {np.exp(np.mean(np.log(self.values))):.3f} ({low:.3f} to {high:.3f}) where 1 is true"
        what = f"the ratios of {len(self.values)} pairs" if self.is_paired else f"{len(self.values)} sessions"
        return (
            f"{self.cell} {self.metric}: {self.between:.2%} between {what}{equal}{within}; "
            f"{policy.min_sessions} {self.replicates} uphold a threshold of "
            f"{self.least_regression(policy.min_sessions):.1%}, {policy.max_sessions} one of "
            f"{self.least_regression(policy.max_sessions):.1%}; for {policy.max_regression:.1%} {needs}"
        )

    def sessions_for(self, policy: GateMetric) -> int | None:
        """The fewest sessions that uphold the policy's threshold; None when its maximum does not."""
        candidates = range(policy.min_sessions, policy.max_sessions + 1)
        return next((n for n in candidates if self.least_regression(n) <= policy.max_regression), None)


def calibrate(
    cell: str,
    metric: str,
    values: Sequence[float],
    passes: Sequence[Sequence[float | None]],
    *,
    is_paired: bool = False,
) -> Calibration:
    """From the values of sessions of one commit, or the ratios of pairs of it. Raises WorkflowError below eight."""
    if len(values) < MIN_SESSIONS:
        what = "pairs" if is_paired else "sessions"
        raise WorkflowError(f"{cell}: a calibration needs {MIN_SESSIONS} {what} and has {len(values)}")
    between = noise(values)
    assert between is not None
    inside = [noise([v for v in own if v]) for own in passes if sum(v is not None for v in own) >= 2]
    squares = [value**2 for value in inside if value is not None]
    within = float(np.sqrt(np.mean(squares))) if squares else None
    return Calibration(cell, metric, tuple(values), between, within, is_paired)


def upheld(calibration: Calibration, policy: GateMetric) -> GateMetric:
    """The policy with as many sessions or pairs at least as uphold its threshold on this machine.

    Raises WorkflowError, with what to write instead, where no number that the policy allows does.
    """
    name = f"{calibration.cell} {calibration.metric}"
    if calibration.between > policy.max_noise:
        raise WorkflowError(
            f"{name}: {'ratios of pairs' if calibration.is_paired else 'sessions'} vary by {calibration.between:.1%} "
            f"and max_noise is {policy.max_noise:.1%}; quieten the machine or "
            f"{'raise pairs.passes of the testbed' if calibration.is_paired else 'lengthen the windows'}"
        )
    if enough := calibration.sessions_for(policy):
        return policy.model_copy(update={"min_sessions": enough})
    raise WorkflowError(
        f"{name}: {policy.max_sessions} {calibration.replicates} with a variation of {calibration.between:.1%} cannot "
        f"uphold a max_regression of {policy.max_regression:.1%}; set max_regression to "
        f"{calibration.least_regression(policy.max_sessions):.1%} or more, or raise max_sessions"
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
                is_paired=bool(body.get("is_paired", False)),  # before there were pairs, none was
            )
            for body in read_json(path)["cells"]
        ]
    except (ValueError, KeyError, TypeError):
        raise WorkflowError(f"{path} cannot be read; delete it, and np1d calibrate writes it anew") from None
