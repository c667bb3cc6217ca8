"""Are two lists of the same items different beyond noise? Exact sign tests for right and wrong, z for lengths."""

import math
from collections.abc import Sequence


def sign_test(first: Sequence[bool], second: Sequence[bool]) -> float:
    """Two-sided exact p-value (McNemar) that the items on which two runs disagree fall either way alike."""
    lost = sum(a and not b for a, b in zip(first, second, strict=True))
    won = sum(b and not a for a, b in zip(first, second, strict=True))
    count = lost + won
    if count == 0:
        return 1.0
    tail = sum(math.comb(count, k) for k in range(min(lost, won) + 1)) / 2**count
    return min(1.0, 2 * tail)


def paired_z(first: Sequence[float], second: Sequence[float]) -> float:
    """Mean difference over its standard error; 0 when no item differs, infinite when all differ by the same."""
    differences = [b - a for a, b in zip(first, second, strict=True)]
    count = len(differences)
    mean = sum(differences) / count
    variance = sum((d - mean) ** 2 for d in differences) / max(count - 1, 1)
    if variance == 0:
        return math.copysign(math.inf, mean) if mean else 0.0
    return mean / math.sqrt(variance / count)
