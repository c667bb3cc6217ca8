"""A number with its uncertainty. Sessions are the sample; passes and requests within one are not.

Values are averaged as logarithms, so that ratios of estimates are estimates of ratios. One value has no interval.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True, slots=True)
class Estimate:
    """Geometric mean and 95 % interval of `sessions` values; NaN where there is none."""

    value: float
    low: float
    high: float
    sessions: int

    @property
    def has_interval(self) -> bool:
        """Whether low and high are numbers."""
        return not math.isnan(self.low)


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)


def estimate(values: Sequence[float]) -> Estimate:
    """Of positive values; others are left out."""
    logs = np.log([value for value in values if value > 0])
    if not len(logs):
        return NOTHING
    mean = float(np.mean(logs))
    if len(logs) < 2:
        return Estimate(math.exp(mean), math.nan, math.nan, 1)
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def ratio(values: Mapping[int, float], base: Mapping[int, float]) -> Estimate:
    """Of sessions to sessions, by block. Only when both ran in the same blocks is there a (paired) interval here."""
    ours, theirs = estimate([*values.values()]), estimate([*base.values()])
    if not ours.sessions or not theirs.sessions:
        return NOTHING
    if set(values) == set(base) and all(value > 0 for value in (*values.values(), *base.values())):
        return estimate([values[block] / base[block] for block in sorted(values)])
    return Estimate(ours.value / theirs.value, math.nan, math.nan, min(ours.sessions, theirs.sessions))
