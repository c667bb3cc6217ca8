"""Comparing two proportions on the same items: exact McNemar, and Newcombe's interval for the paired difference.

Two accuracies must not be compared by their own two intervals: the items are the same, and most agree.
"""

import dataclasses
import math
from typing import Any

from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Items by who got them right; `left_out` were not answered by both."""

    both: int
    only_first: int
    only_second: int
    neither: int
    left_out: int = 0

    @property
    def count(self) -> int:
        """Items that both answered."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def difference(self) -> float:
        """Accuracy of the second minus accuracy of the first."""
        return (self.only_second - self.only_first) / self.count


def compare_pairs(paired: Paired, *, margin: float) -> dict[str, Any]:
    """Is the second no worse than the first by more than `margin`? The answer with all of its evidence."""
    low, high = newcombe_interval(paired)
    p_value = mcnemar_exact(paired)
    verdict = "not_worse" if low > -margin else "worse" if high < -margin else "inconclusive"
    sentence = (
        f"the second differs by {100 * paired.difference:+.2f} points [{100 * low:+.2f}, {100 * high:+.2f}] over "
        f"{paired.count} pairs (margin {100 * margin:.2f}, McNemar p = {p_value:.3f})"
    )
    return {
        "schema": "comparison/1",
        "verdict": verdict,
        "sentence": sentence,
        "margin": margin,
        "difference": paired.difference,
        "ci95": [low, high],
        "mcnemar_p": p_value,
        "pairs": dataclasses.asdict(paired),
    }


def mcnemar_exact(paired: Paired) -> float:
    """Two-sided exact p-value that the two disagree symmetrically; 1 when they never disagree."""
    if paired.only_first + paired.only_second == 0:
        return 1.0
    table = [[paired.both, paired.only_first], [paired.only_second, paired.neither]]
    return float(min(1.0, mcnemar(table, exact=True).pvalue))


def newcombe_interval(paired: Paired) -> tuple[float, float]:
    """95 % interval of second minus first (Newcombe 1998, method 10: Wilson limits, corrected for correlation)."""
    n, a, b, c, d = paired.count, paired.both, paired.only_second, paired.only_first, paired.neither
    p2, p1 = (a + b) / n, (a + c) / n
    l2, u2 = proportion_confint(a + b, n, method="wilson")
    l1, u1 = proportion_confint(a + c, n, method="wilson")
    phi = _correlation(a, b, c, d)
    low = (p2 - l2) ** 2 - 2 * phi * (p2 - l2) * (u1 - p1) + (u1 - p1) ** 2
    high = (u2 - p2) ** 2 - 2 * phi * (u2 - p2) * (p1 - l1) + (p1 - l1) ** 2
    return p2 - p1 - math.sqrt(max(0.0, low)), p2 - p1 + math.sqrt(max(0.0, high))


def _correlation(a: int, b: int, c: int, d: int) -> float:
    n, product = a + b + c + d, (a + b) * (c + d) * (a + c) * (b + d)
    if product == 0:
        return 0.0
    excess = float(a * d - b * c)
    if excess > 0:
        excess = max(0.0, excess - n / 2)  # continuity correction
    return excess / math.sqrt(product)
