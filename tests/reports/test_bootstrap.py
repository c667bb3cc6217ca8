"""The bootstrap's interval is SciPy's, repeatable, and not given for few values."""

import numpy as np
import pytest
from scipy import stats

from reports.bootstrap import LEAST_VALUES, bca_interval

DRAW = np.random.default_rng(5)
VALUES, BASE = list(DRAW.normal(0.01, 0.01, 9)), list(DRAW.normal(0, 0.02, 12))


@pytest.mark.parametrize("base", [None, BASE], ids=["mean", "distance of two means"])
def test_it_is_scipys_bca_interval_whatever_the_seed(base):
    samples = (VALUES,) if base is None else (VALUES, base)
    distance = (lambda a, axis: np.mean(a, axis=axis)) if base is None else (
        lambda a, b, axis: np.mean(a, axis=axis) - np.mean(b, axis=axis)
    )  # fmt: skip
    other_seed = np.random.default_rng(99)
    want = stats.bootstrap(samples, distance, n_resamples=40_000, method="BCa", rng=other_seed).confidence_interval
    found = bca_interval(VALUES, base)
    assert found == pytest.approx((want.low, want.high), abs=0.06 * (want.high - want.low))
    assert found == bca_interval(VALUES, base)


def test_fewer_than_eight_of_either_have_none():
    few = VALUES[: LEAST_VALUES - 1]
    assert bca_interval(few) is None and bca_interval(few, BASE) is None and bca_interval(VALUES, few) is None
    assert bca_interval(VALUES[:LEAST_VALUES]) is not None


def test_values_that_do_not_vary_have_an_interval_of_no_width():
    assert bca_interval([0.5] * 8) == (0.5, 0.5) and bca_interval([0.5] * 8, [0.25] * 8) == (0.25, 0.25)


def test_it_covers_normal_noise_less_often_than_t_and_no_less_than_the_report_says():
    draw = np.random.default_rng(1).normal(0, 0.01, (300, 8))
    held = sum(low <= 0 <= high for low, high in map(bca_interval, draw))
    half = stats.t.ppf(0.975, 7) * draw.std(axis=1, ddof=1) / np.sqrt(8)
    assert 0.84 < held / 300 < np.mean(np.abs(draw.mean(axis=1)) <= half)
