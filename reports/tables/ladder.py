"""A ladder: its rows in published order, ours beside the published values, and what the pair may be called."""

import math

import numpy as np
import pandas as pd
from scipy import stats

from reports.claims import Cell
from reports.held import Held
from reports.results import Results


def ladder_table(results: Results, held: list[Held], suite: str, metric: str) -> pd.DataFrame:
    """One row a cell of `suite`: sessions, our mean with its 95 % interval, the published value, ratios and verdict.

    Columns: row, workload, sessions, failed, ours, ours_low, ours_high, ours_over_baseline, published,
    published_over_baseline, verdict, reason. Missing numbers are NaN; an interval needs two sessions.
    """
    return pd.DataFrame([_row(results, held, cell, metric) for cell in _cells(results, held, suite)])


def _cells(results: Results, held: list[Held], suite: str) -> list[Cell]:
    claimed = [
        h.claim.cell for h in held if h.claim.kind == "absolute" and h.claim.cell and h.claim.cell.suite == suite
    ]
    measured = [cell for cell in results.cells if cell.suite == suite]
    return list(dict.fromkeys([*claimed, *measured]))


def _row(results: Results, held: list[Held], cell: Cell, metric: str) -> dict[str, object]:
    values = results.values(cell, metric)
    base = Cell(cell.suite, "baseline", cell.workload)
    mean, low, high = _interval(values)
    base_mean, _, _ = _interval(results.values(base, metric))
    absolute, ratio = (_claim(held, cell, metric, kind) for kind in ("absolute", "ratio"))
    said = ratio or absolute
    return {
        "row": cell.row,
        "workload": cell.workload,
        "sessions": len(values),
        "failed": sum(session.outcome != "ok" for session in results.of(cell)),
        "ours": mean,
        "ours_low": low,
        "ours_high": high,
        "ours_over_baseline": mean / base_mean if base_mean else math.nan,
        "published": absolute.claim.published if absolute else math.nan,
        "published_over_baseline": ratio.claim.published if ratio else math.nan,
        "verdict": said.verdict.outcome if said else "no published value",
        "reason": said.verdict.reason if said else "",
    }


def _claim(held: list[Held], cell: Cell, metric: str, kind: str) -> Held | None:
    for h in held:
        is_ours = h.claim.cell == cell and h.claim.metric == metric and h.claim.kind == kind
        if is_ours and (h.claim.base is None or h.claim.base.row == "baseline"):
            return h
    return None


def _interval(values: list[float]) -> tuple[float, float, float]:
    """Geometric mean of positive values and its 95 % interval."""
    positive = [value for value in values if value > 0]
    if not positive:
        return math.nan, math.nan, math.nan
    logs = np.log(positive)
    mean = float(np.mean(logs))
    if len(positive) < 2:
        return math.exp(mean), math.nan, math.nan
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
