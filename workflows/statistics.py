"""Comparing two sets of sessions: log ratios, their intervals, and the four verdicts of the gate.

Knows nothing of files. The replicate is the session: one value each. A ratio above 1 means a better candidate,
whichever way the metric points. An interval needs two sessions a side; without them there is none, never one of zero
width.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy import special, stats

from reports.bootstrap import bca_interval

Direction = Literal["higher", "lower"]
Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE", "INVALID"]
ALPHA = 0.05
"""One-sided: the bounds below are each exceeded by chance once in twenty times."""
RANK_TEST_FROM = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Candidate against baseline on the log scale. Bounds are one-sided at 5 %; `interval` is two-sided at 95 %."""

    ratio: float | None
    lower: float | None
    upper: float | None
    interval: tuple[float, float] | None
    p_worse: float | None
    """Chance of a ratio this small if nothing had changed."""
    num_candidate: int
    num_baseline: int
    method: Literal["welch", "paired", "none"]


def compare(candidate: Sequence[float], baseline: Sequence[float], direction: Direction) -> Comparison:
    """Unpaired: Welch's t on logs. Values must be positive and finite."""
    a, b = _logs(candidate, direction), _logs(baseline, direction)
    if not len(a) or not len(b):
        return _nothing(len(a), len(b))
    difference = float(a.mean() - b.mean())
    if len(a) < 2 or len(b) < 2:
        return _point(difference, len(a), len(b))
    variance = a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)
    freedom = _welch_freedom(a, b)
    return _interval(difference, math.sqrt(variance), freedom, (len(a), len(b)), "welch")


def compare_paired(pairs: Sequence[tuple[float, float]], direction: Direction) -> Comparison:
    """Paired by block: t on the differences of logs of (candidate, baseline)."""
    if not pairs:
        return _nothing(0, 0)
    candidate, baseline = zip(*pairs, strict=True)
    differences = _logs(candidate, direction) - _logs(baseline, direction)
    if len(differences) < 2:
        return _point(float(differences.mean()), 1, 1)
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    sizes = (len(differences), len(differences))
    return _interval(float(differences.mean()), error, len(differences) - 1, sizes, "paired")


def verdict_of(comparison: Comparison, max_regression: float) -> Verdict:
    """PASS: the loss is surely smaller than tolerated. FAIL: surely a loss, and larger than tolerated. Else neither."""
    if comparison.lower is None or comparison.upper is None or comparison.ratio is None:
        return "INCONCLUSIVE"
    if comparison.lower > 1 - max_regression:
        return "PASS"
    if comparison.upper < 1 and comparison.ratio < 1 - max_regression:
        return "FAIL"
    return "INCONCLUSIVE"


def holm(p_values: Sequence[float]) -> list[float]:
    """P values adjusted for having looked at all of them, by Holm's step-down method."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def rank_p(
    candidate: Sequence[float], baseline: Sequence[float], direction: Direction, *, is_paired: bool
) -> float | None:
    """Chance of ranks this low if nothing had changed: a cross-check that is printed and never decides."""
    if min(len(candidate), len(baseline)) < RANK_TEST_FROM:
        return None
    a, b = _logs(candidate, direction), _logs(baseline, direction)
    if is_paired:
        return float(stats.wilcoxon(a - b, alternative="less").pvalue) if np.any(a != b) else 1.0
    return float(stats.mannwhitneyu(a, b, alternative="less", method="exact").pvalue)


def bca(
    candidate: Sequence[float], baseline: Sequence[float], direction: Direction, *, is_paired: bool
) -> tuple[float, float] | None:
    """95 % interval of the ratio by the bootstrap, from eight sessions a side on: printed too, and never decides."""
    a, b = _logs(candidate, direction), _logs(baseline, direction)
    if is_paired:
        found = bca_interval([x - y for x, y in zip(a, b, strict=False)])
    else:
        found = bca_interval(list(a), list(b))
    return found and (math.exp(found[0]), math.exp(found[1]))


def noise(values: Sequence[float]) -> float | None:
    """Coefficient of variation on the log scale; None below two values."""
    return float(np.log(np.asarray(values, dtype=float)).std(ddof=1)) if len(values) >= 2 else None


def bound_offset(noise_between: float, sessions: int) -> float:
    """How far below the ratio the one-sided bound lies when both sides have so many sessions of that noise."""
    error = noise_between * math.sqrt(2 / sessions)
    return 1 - math.exp(-float(special.stdtrit(2 * sessions - 2, 1 - ALPHA)) * error)


def paired_bound_offset(noise_between: float, pairs: int) -> float:
    """The same for the mean of so many pairs whose ratios vary by that noise."""
    error = noise_between / math.sqrt(pairs)
    return 1 - math.exp(-float(special.stdtrit(pairs - 1, 1 - ALPHA)) * error)


def _logs(values: Sequence[float], direction: Direction) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    array = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(array)) or np.any(array <= 0):
        raise ValueError("a session's value must be positive and finite")
    return np.log(array) if direction == "higher" else -np.log(array)


def _welch_freedom(
    a: "np.ndarray[tuple[int], np.dtype[np.float64]]", b: "np.ndarray[tuple[int], np.dtype[np.float64]]"
) -> float:
    va, vb = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    if va + vb == 0:
        return float(len(a) + len(b) - 2)
    return float((va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1)))


def _interval(
    difference: float,
    error: float,
    freedom: float,
    sizes: tuple[int, int],
    method: Literal["welch", "paired"],
) -> Comparison:
    one_sided = float(special.stdtrit(freedom, 1 - ALPHA)) * error
    two_sided = float(special.stdtrit(freedom, 1 - ALPHA / 2)) * error
    p_worse = float(special.stdtr(freedom, difference / error)) if error > 0 else float(difference >= 0)
    return Comparison(
        ratio=math.exp(difference),
        lower=math.exp(difference - one_sided),
        upper=math.exp(difference + one_sided),
        interval=(math.exp(difference - two_sided), math.exp(difference + two_sided)),
        p_worse=p_worse,
        num_candidate=sizes[0],
        num_baseline=sizes[1],
        method=method,
    )


def _point(difference: float, num_candidate: int, num_baseline: int) -> Comparison:
    return dataclasses.replace(_nothing(num_candidate, num_baseline), ratio=math.exp(difference))


def _nothing(num_candidate: int, num_baseline: int) -> Comparison:
    return Comparison(
        ratio=None, lower=None, upper=None, interval=None, p_worse=None,
        num_candidate=num_candidate, num_baseline=num_baseline, method="none",
    )  # fmt: skip
