"""All that a page is made of: the sessions, the claims held against them, and the questions that tables ask of both."""

from dataclasses import dataclass

from reports.claims import Cell
from reports.claims.claim import Kind
from reports.estimates import Estimate, estimate, ratio
from reports.held import Held, hold_claims
from reports.results import Results

SUITE_METRIC = {
    "prefill": "input_tok_s",
    "decode": "output_tok_s",
    "integrated": "output_tok_s",
    "drafters": "output_tok_s",
}
LADDERS = ("prefill", "decode", "integrated")
"""Suites whose rows are held against a row called `baseline`."""
WORKLOADS = {"prefill": ("prefill_only",), "decode": ("sp99_9",), "integrated": ("sp0", "sp50", "sp93_75")}
SHARED_PREFIX = {"prefill_only": "0 %", "sp99_9": "99.9 %", "sp0": "0 %", "sp50": "50 %", "sp93_75": "93.75 %"}


@dataclass(frozen=True, slots=True)
class Material:
    """Read once, shared by every table and figure."""

    results: Results
    held: tuple[Held, ...]

    def ours(self, cell: Cell, metric: str) -> Estimate:
        """Our sessions' value."""
        return estimate(self.results.values(cell, metric))

    def mean(self, cell: Cell, metric: str) -> float:
        """Arithmetic mean of our sessions' values, for shares, which may be 0; NaN for none."""
        values = self.results.values(cell, metric)
        return sum(values) / len(values) if values else float("nan")

    def ours_over(self, cell: Cell, base: Cell, metric: str) -> Estimate:
        """Our sessions' value over that of another cell."""
        return ratio(self._by_block(cell, metric), self._by_block(base, metric))

    def find(self, cell: Cell, metric: str, kind: Kind = "absolute", base: str | None = None) -> Held | None:
        """The claim about a cell's metric; for a ratio, the one over the row `base`."""
        for held in self.held:
            claim = held.claim
            is_it = claim.cell == cell and claim.metric == metric and claim.kind == kind
            if is_it and (kind != "ratio" or (claim.base and claim.base.row == base)):
                return held
        return None

    def published(self, cell: Cell, metric: str) -> float:
        """The published value, NaN where none is printed."""
        held = self.find(cell, metric)
        return held.claim.published if held else float("nan")

    def rows(self, suite: str, workload: str) -> list[str]:
        """The baseline, published rows in their order, then our own rows as far as they have a session."""
        claimed = [
            held.claim.cell.row
            for held in self.held
            if held.claim.kind == "absolute" and held.claim.cell and _is_of(held.claim.cell, suite, workload)
        ]
        measured = [cell.row for cell in self.results.cells if _is_of(cell, suite, workload)]
        first = ["baseline"] if suite in LADDERS else []
        return list(dict.fromkeys([*first, *claimed, *measured]))

    def _by_block(self, cell: Cell, metric: str) -> dict[int, float]:
        found = {session.index: session.metrics.get(metric) for session in self.results.valid(cell)}
        return {index: value for index, value in found.items() if value is not None and value > 0}


def collect(results: Results) -> Material:
    """Hold every claim against the sessions."""
    return Material(results, tuple(hold_claims(results)))


def _is_of(cell: Cell, suite: str, workload: str) -> bool:
    return cell.suite == suite and cell.workload == workload
