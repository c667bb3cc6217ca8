"""Each definition against a request computed by hand."""

import math
from pathlib import Path

import pytest

from workloads import definitions
from workloads.definitions import e2e_s, mean, percentile, ratio, spread_gaps_ms, tpot_ms, ttft_s

# One request, sent at 10.0 s: tokens at 10.5 (1), 10.53 (3), 10.56 (3), 10.59 (3): 10 tokens, 4 chunks.
TIMES = [10.5, 10.53, 10.56, 10.59]
TOKENS = [1, 3, 3, 3]


def test_ttft_is_first_token_minus_origin():
    assert ttft_s(origin_s=10.0, first_token_s=10.5) == 0.5
    assert ttft_s(origin_s=10.0, first_token_s=None) is None


def test_tpot_with_one_token_first_is_the_usual_formula():
    got = tpot_ms(first_token_s=10.5, last_token_s=10.59, output_tokens=10, first_chunk_tokens=1)
    assert got == pytest.approx(90 / 9)


def test_tpot_leaves_out_the_first_chunk():
    got = tpot_ms(first_token_s=10.5, last_token_s=10.59, output_tokens=12, first_chunk_tokens=3)
    assert got == pytest.approx(90 / 9)


def test_tpot_of_one_chunk_is_absent():
    assert tpot_ms(first_token_s=10.5, last_token_s=10.5, output_tokens=100, first_chunk_tokens=100) is None
    assert tpot_ms(first_token_s=10.5, last_token_s=10.5, output_tokens=1, first_chunk_tokens=1) is None


def test_itl_spreads_a_gap_over_its_tokens():
    assert spread_gaps_ms(TIMES, TOKENS) == pytest.approx([10.0] * 9)


def test_e2e_is_last_token_minus_origin():
    assert e2e_s(origin_s=10.0, last_token_s=10.59) == pytest.approx(0.59)


@pytest.mark.parametrize(("percent", "need"), [(50, 5), (90, 100), (95, 200), (99, 1000), (99.9, 10_000)])
def test_percentile_needs_its_sample(percent, need):
    few = percentile([1.0] * (need - 1), percent)
    assert few.value is None and f"{need - 1} of {need}" in few.reason
    assert percentile([1.0] * need, percent).value == 1.0


def test_percentile_interpolates_linearly():
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 50).value == 3.5


def test_absent_values_carry_their_reason():
    assert mean([], "nothing").reason == "nothing"
    assert ratio(1, 0, "no time").reason == "no time"
    assert math.isclose(ratio(1, 4, "").value, 0.25)


def test_the_definitions_page_is_what_the_code_says():
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert page.read_text() == definitions.page()
