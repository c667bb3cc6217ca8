"""Means over sessions and their intervals."""

import math
import random

import pytest

from reports.estimates import estimate, ratio


def test_one_value_has_no_interval_and_none_is_nothing():
    assert estimate([5.0]).value == pytest.approx(5.0) and not estimate([5.0]).has_interval
    assert math.isnan(estimate([]).value) and estimate([]).sessions == 0
    assert estimate([0.0, -1.0]).sessions == 0


def test_nineteen_of_twenty_intervals_hold_the_truth():
    draw = random.Random(3)
    held = 0
    for _ in range(2000):
        one = estimate([100 * math.exp(draw.gauss(0, 0.05)) for _ in range(4)])
        held += one.low <= 100 <= one.high
    assert 0.935 < held / 2000 < 0.965


def test_sessions_of_one_block_are_paired():
    base = {0: 100.0, 1: 150.0, 2: 80.0}
    paired = ratio({block: 2 * value for block, value in base.items()}, base)
    assert paired.value == pytest.approx(2.0)
    assert paired.high - paired.low < 1e-9
    other = ratio({5: 200.0}, base)
    assert other.value == pytest.approx(200 / (100 * 150 * 80) ** (1 / 3)) and not other.has_interval
