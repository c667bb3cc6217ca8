"""Does a change cost throughput? Margin, significance and confirmation, one verdict for each cell and one for all.

Knows nothing of how sessions are measured: it asks for one more value where it needs one. A cell with an invalid
session is INVALID and can never pass. FAIL needs a loss past the margin that is significant after Holm's correction
over all cells, and a fresh session that loses as well. Whatever stays open at the largest number of sessions is
INCONCLUSIVE.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from workflows.schema import GateMetric
from workflows.statistics import ALPHA, Comparison, Verdict, compare, compare_paired, holm, noise, verdict_of

Side = Literal["candidate", "baseline"]
EXIT_CODES: dict[Verdict, int] = {"PASS": 0, "FAIL": 1, "INVALID": 3, "INCONCLUSIVE": 4}
"""2 is a mistake of the user."""
_WORST_FIRST: tuple[Verdict, ...] = ("INVALID", "FAIL", "INCONCLUSIVE", "PASS")


class InvalidSessionError(Exception):
    """A session that is no result; the message is its reason."""


@dataclasses.dataclass(slots=True)
class GatedCell:
    """One metric of one cell, with the sessions measured so far."""

    name: str
    metric: str
    policy: GateMetric
    candidate: list[float] = dataclasses.field(default_factory=list)
    baseline: list[float] = dataclasses.field(default_factory=list)
    is_paired: bool = False
    """Both sides are measured in turn on one machine, and session k of one belongs to session k of the other: the
    replicate is the pair."""
    how: str = ""
    """How its sessions are measured, for the report."""
    invalid: str = ""
    verdict: Verdict = "INCONCLUSIVE"
    p_adjusted: float | None = None
    confirmation: float | None = None
    """Ratio of the fresh session that was to confirm a FAIL."""
    note: str = ""

    @property
    def comparison(self) -> Comparison:
        """Everything measured so far."""
        if self.is_paired:
            return compare_paired(list(zip(self.candidate, self.baseline, strict=False)), self.policy.direction)
        return compare(self.candidate, self.baseline, self.policy.direction)

    @property
    def noise(self) -> float | None:
        """Between sessions of the baseline; where they are paired, between the ratios of pairs."""
        return noise(self.ratios if self.is_paired else self.baseline)

    @property
    def ratios(self) -> list[float]:
        """Of each pair, candidate over baseline as measured."""
        return [ours / theirs for ours, theirs in zip(self.candidate, self.baseline, strict=False)]


Measure = Callable[[GatedCell, Sequence[Side]], dict[Side, float]]
"""One more session of a cell for each of these sides, which go in this order or take turns in it; raises
InvalidSessionError when one is no result."""


def run_gate(cells: Sequence[GatedCell], measure: Measure | None) -> Verdict:
    """Bring every cell to its verdict, measuring more where allowed; returns the verdict over all cells."""
    for cell in cells:
        _settle(cell, measure)
    while pending := _correct(cells):
        if measure is None:
            break
        for cell in pending:
            _add(cell, measure)
            cell.note = ""
            cell.verdict = "INVALID" if cell.invalid else verdict_of(cell.comparison, cell.policy.max_regression)
    for cell in cells:
        if cell.verdict == "FAIL":
            _confirm(cell, measure)
    return overall(cell.verdict for cell in cells)


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of all; without any cell there is nothing to pass."""
    found = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in found), "INVALID")


def _settle(cell: GatedCell, measure: Measure | None) -> None:
    """More sessions until PASS or FAIL, or until there are as many as allowed."""
    policy = cell.policy
    while not cell.invalid:
        if len(cell.candidate) >= policy.min_sessions:
            cell.verdict = verdict_of(cell.comparison, policy.max_regression)
            is_open = cell.verdict == "INCONCLUSIVE" and cell.comparison.lower is not None
            if not is_open or len(cell.candidate) >= policy.max_sessions:
                break
        if measure is None:
            cell.note = cell.note or f"{len(cell.candidate)} sessions are there and {policy.min_sessions} are needed"
            break
        _add(cell, measure)
    if cell.invalid:
        cell.verdict = "INVALID"


def add(cell: GatedCell, measure: Measure) -> None:
    """One more session, or pair of them; every other pair begins with the baseline. Raises InvalidSessionError."""
    first_baseline = cell.is_paired and len(cell.candidate) % 2 == 1
    sides: tuple[Side, ...] = ("candidate",)
    if cell.is_paired:
        sides = ("baseline", "candidate") if first_baseline else ("candidate", "baseline")
    values = measure(cell, sides)
    cell.candidate.append(values["candidate"])
    if cell.is_paired:
        cell.baseline.append(values["baseline"])


def _add(cell: GatedCell, measure: Measure) -> None:
    try:
        add(cell, measure)
    except InvalidSessionError as error:
        cell.invalid = str(error)


def _correct(cells: Sequence[GatedCell]) -> list[GatedCell]:
    """Holm over all judged cells: among many, one looks bad by chance. Returns those that more sessions may decide."""
    judged = [cell for cell in cells if cell.comparison.p_worse is not None and not cell.invalid]
    adjusted = holm([cell.comparison.p_worse or 0.0 for cell in judged])
    pending = []
    for cell, p_value in zip(judged, adjusted, strict=True):
        cell.p_adjusted = p_value
        if cell.verdict == "FAIL" and p_value > ALPHA:
            cell.verdict = "INCONCLUSIVE"
            cell.note = f"not significant after correction for {len(judged)} cells"
            if len(cell.candidate) < cell.policy.max_sessions:
                pending.append(cell)
    return pending


def _confirm(cell: GatedCell, measure: Measure | None) -> None:
    """One more fresh session, or pair of them, on the same cell: it must lose too, and the whole must still fail."""
    for _ in range(cell.policy.confirm):
        if measure is None:
            cell.verdict, cell.note = "INCONCLUSIVE", "a confirming session was not measured"
            return
        _add(cell, measure)
        if cell.invalid:
            cell.verdict = "INVALID"
            return
        against = cell.baseline[-1:] if cell.is_paired else cell.baseline
        fresh = compare(cell.candidate[-1:], against, cell.policy.direction).ratio
        cell.confirmation = fresh
        still = verdict_of(cell.comparison, cell.policy.max_regression)
        if still != "FAIL" or fresh is None or fresh > 1 - cell.policy.max_regression / 2:
            cell.verdict, cell.note = "INCONCLUSIVE", "a fresh session did not confirm the loss"
            return
