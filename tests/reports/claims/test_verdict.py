"""What a run may say about a published value, and above all what it may not."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reports.claims import claims, judge
from reports.claims.verdict import REAL_LABELS

RATIO = next(claim for claim in claims() if claim.kind == "ratio")
ABSOLUTE = next(claim for claim in claims() if claim.kind == "absolute")
REAL = {name: words[0] for name, words in REAL_LABELS.items()}


def _around(value: float, spread: float = 0.002, count: int = 5) -> list[float]:
    draw = random.Random(7)
    return [value * math.exp(draw.gauss(0, spread)) for _ in range(count)]


@pytest.mark.parametrize(
    ("factor", "outcome"), [(1.0, "reproduced"), (1.2, "higher"), (0.8, "lower"), (1.05, "inconclusive")]
)
def test_real_sessions_decide_by_their_interval(factor, outcome):
    values = _around(ABSOLUTE.published * factor)
    assert judge(ABSOLUTE, values, labels=[REAL] * 5).outcome == outcome
    pair = judge(RATIO, _around(RATIO.published * factor * 100), _around(100.0), [REAL] * 10, is_paired=False)
    assert pair.outcome == outcome


_WORDS = {
    "weights": ["random"],
    "acceptance": ["forced"],
    "admission": ["synthetic", "colocated"],
    "lengths": ["scaled"],
    "scale": ["cpu-tiny", "quarter"],
}
_LIES = [(name, word) for name, words in _WORDS.items() for word in [*words, None, "", "Checkpoint", "FULL "]]


@pytest.mark.parametrize(("name", "word"), _LIES)
@pytest.mark.parametrize("claim", [RATIO, ABSOLUTE], ids=lambda claim: claim.kind)
def test_nothing_simulated_is_ever_called_reproduced(claim, name, word):
    labels = {key: value for key, value in {**REAL, name: word}.items() if value is not None}
    for spread, count in itertools.product((0.0001, 0.002), (1, 2, 5, 30)):
        values, base = _around(claim.published, spread, count), _around(1.0, spread, count)
        mixed = [REAL] * (count - 1) + [labels]
        for found in ([labels] * count, mixed, []):
            verdict = judge(claim, values, base if claim.kind == "ratio" else (), found)
            assert verdict.outcome == ("indicative" if claim.kind == "ratio" else "not comparable")


def test_one_session_has_no_interval_and_is_only_indicative():
    verdict = judge(ABSOLUTE, [ABSOLUTE.published], labels=[REAL])
    assert (verdict.outcome, verdict.interval) == ("indicative", None)


def test_fewer_than_five_sessions_are_a_quick_look_with_their_interval():
    values = _around(RATIO.published * 100, 0.002, 4)
    verdict = judge(RATIO, values, _around(100.0), [REAL] * 9)
    assert (verdict.outcome, verdict.reason) == ("indicative", "4 sessions are a quick look; 5 decide")
    assert verdict.interval is not None
    assert judge(RATIO, [*values, values[0]], _around(100.0), [REAL] * 10).outcome == "reproduced"


def test_an_unpaired_interval_is_that_of_welch():
    ours, base = [1.0, 1.02, 0.99, 1.01, 1.0, 1.03, 0.98], [100.0, 104.0, 97.0, 101.0, 99.0]
    verdict = judge(RATIO, [RATIO.published * 100 * x for x in ours], base, [REAL] * 12)
    want = stats.ttest_ind(np.log(ours), np.log(np.asarray(base) / 100), equal_var=False).confidence_interval(0.95)
    assert verdict.interval == pytest.approx((math.exp(want.low), math.exp(want.high)))


def test_a_claim_without_a_session_of_each_cell_is_not_run():
    assert judge(ABSOLUTE, []).outcome == "not run"
    assert judge(RATIO, [1.0, 1.0], [], [REAL] * 2).outcome == "not run"


@given(st.floats(0.5, 2.0), st.integers(2, 12), st.floats(0.0005, 0.05))
def test_the_interval_holds_the_ratio_of_means_and_shrinks_with_nothing_hidden(factor, count, spread):
    verdict = judge(ABSOLUTE, _around(ABSOLUTE.published * factor, spread, count), labels=[REAL] * count)
    assert verdict.interval is not None and verdict.relative is not None
    assert verdict.interval[0] <= verdict.relative <= verdict.interval[1]


def test_every_computed_claim_closes():
    computed = [claim for claim in claims() if claim.kind == "computed"]
    assert len(computed) >= 10
    assert {claim.id: judge(claim, ()).outcome for claim in computed} == {claim.id: "reproduced" for claim in computed}


def test_claim_ids_are_unique_and_ratios_come_first():
    all_claims = claims()
    assert len({claim.id for claim in all_claims}) == len(all_claims)
    kinds = [claim.kind for claim in all_claims]
    assert kinds == sorted(kinds, key=["ratio", "absolute", "computed"].index)


def test_the_headline_ratios_are_among_the_claims():
    found = {claim.id: claim.published for claim in claims()}
    assert found["decode/dflash2_tuned_moe_dsa_partial/sp99_9:output_tok_s/baseline"] == pytest.approx(4.32, abs=0.005)
    assert found["prefill/fp8_comm_fusion_scheduling/prefill_only:input_tok_s/baseline"] == pytest.approx(
        2.06, abs=0.005
    )
    speedups = [found[f"integrated/optimized/{name}:output_tok_s/baseline"] for name in ("sp0", "sp50", "sp93_75")]
    assert speedups == [2.3, 2.11, 4.28]


def test_from_eight_sessions_on_a_verdict_must_hold_by_the_bootstrap_too():
    seven, eight = (judge(ABSOLUTE, _around(ABSOLUTE.published, count=n), labels=[REAL] * n) for n in (7, 8))
    assert seven.bca is None and eight.bca is not None
    assert eight.reason.startswith("both intervals lie within")
    slow = [ABSOLUTE.published * (1 - ABSOLUTE.band) * math.exp(x) for x in (*[0.0134] * 7, -0.0166)]
    unsure = judge(ABSOLUTE, slow, labels=[REAL] * 8)
    assert unsure.interval is not None and unsure.bca is not None
    assert unsure.bca[0] < 1 - ABSOLUTE.band < unsure.interval[0], "t alone would have said reproduced"
    assert unsure.outcome == "inconclusive"
