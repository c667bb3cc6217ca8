"""The gate over simulated sessions: it fails for a true loss, and only for that."""

import math
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from workflows.gate import EXIT_CODES, GatedCell, InvalidSessionError, Side, overall, run_gate
from workflows.gate_report import as_json, as_junit, as_markdown
from workflows.schema import GateMetric
from workflows.statistics import bca, bound_offset, compare, compare_paired, holm, verdict_of

POLICY = GateMetric(direction="higher", max_regression=0.03, max_noise=0.02)
NUM_CELLS = 30


def simulated(seed: int, *, change: float, noise: float, changed: int = NUM_CELLS, paired: bool = False):
    """Cells with a baseline of eight sessions (or none where both sides are measured in turn), and their measure."""
    draw = np.random.default_rng(seed)
    cells = [
        GatedCell(
            f"cell{i}",
            "output_tok_s",
            POLICY,
            is_paired=paired,
            baseline=[] if paired else list(100 * np.exp(draw.normal(0, noise, 8))),
        )
        for i in range(NUM_CELLS)
    ]

    def value(cell: GatedCell, side: Side) -> float:
        is_changed = side == "candidate" and int(cell.name[4:]) < changed
        return 100 * (1 + (change if is_changed else 0)) * math.exp(draw.normal(0, noise))

    return cells, lambda cell, sides: {side: value(cell, side) for side in sides}


def giving(values: Iterable[float]):
    """A measure that gives these values, one after the other."""
    left = iter(values)
    return lambda _cell, sides: {side: next(left) for side in sides}


@pytest.mark.parametrize(("noise", "paired"), [(0.01, False), (0.01, True), (0.003, False)], ids=str)
def test_no_change_fails_in_at_most_one_gate_of_a_hundred(noise: float, paired: bool) -> None:
    gates = 100
    failed = 0
    for seed in range(gates):
        cells, measure = simulated(seed, change=0.0, noise=noise, paired=paired)
        failed += run_gate(cells, measure) == "FAIL"
    assert failed / gates <= 0.01


@pytest.mark.parametrize(("noise", "paired"), [(0.01, False), (0.01, True), (0.003, False)], ids=str)
def test_a_loss_of_five_percent_in_one_cell_of_thirty_is_found(noise: float, paired: bool) -> None:
    gates = 60
    found = 0
    for seed in range(gates):
        cells, measure = simulated(seed, change=-0.05, noise=noise, changed=1, paired=paired)
        run_gate(cells, measure)
        found += cells[0].verdict == "FAIL"
    assert found / gates >= 0.95


def test_a_loss_within_the_margin_does_not_fail() -> None:
    verdicts = []
    for seed in range(20):
        cells, measure = simulated(seed, change=-0.01, noise=0.01)
        run_gate(cells, measure)
        verdicts += [cell.verdict for cell in cells]
    assert verdicts.count("FAIL") / len(verdicts) < 0.005
    assert verdicts.count("PASS") / len(verdicts) > 0.8


def test_sessions_are_added_only_while_nothing_is_certain() -> None:
    cells, measure = simulated(1, change=0.0, noise=0.01)
    run_gate(cells, measure)
    counts = [len(cell.candidate) for cell in cells]
    assert min(counts) == POLICY.min_sessions
    assert max(counts) <= POLICY.max_sessions


def test_an_invalid_session_never_passes() -> None:
    def measure(cell: GatedCell, sides: Sequence[Side]) -> dict[Side, float]:
        if cell.name == "cell0" and len(cell.candidate) == 2:
            raise InvalidSessionError("errors: 3 of 40 requests failed")
        return dict.fromkeys(sides, 200.0)

    cells = [GatedCell(f"cell{i}", "output_tok_s", POLICY, baseline=[100.0, 101.0, 99.0]) for i in range(2)]
    assert run_gate(cells, measure) == "INVALID"
    assert [cell.verdict for cell in cells] == ["INVALID", "PASS"]


def test_a_fresh_session_that_does_not_lose_takes_a_fail_back() -> None:
    values = iter([90.0, 90.5, 89.5, 100.0])
    cell = GatedCell("cell", "output_tok_s", POLICY, baseline=[100.0, 100.2, 99.8, 100.1])
    assert run_gate([cell], giving(values)) == "INCONCLUSIVE"
    assert cell.note == "a fresh session did not confirm the loss"


def test_a_confirmed_loss_fails_with_its_size_in_the_sentence() -> None:
    values = iter([90.0, 90.5, 89.5, 90.1])
    cell = GatedCell("cell", "output_tok_s", POLICY, baseline=[100.0, 100.2, 99.8, 100.1])
    assert run_gate([cell], giving(values)) == "FAIL"
    assert "-10.0 %; a loss, and more than the tolerated 3%" in as_markdown([cell], "FAIL", {})


@pytest.mark.parametrize(("fresh", "verdict"), [((45.0, 50.0), "FAIL"), ((50.0, 50.0), "INCONCLUSIVE")], ids=str)
def test_a_fresh_pair_confirms_by_its_own_ratio_at_any_speed_of_the_machine(
    fresh: tuple[float, float], verdict: str
) -> None:
    pairs = iter([(90.0, 100.0), (81.2, 90.0), (72.0, 80.1), fresh])
    cell = GatedCell("cell", "output_tok_s", POLICY, is_paired=True)
    assert run_gate([cell], lambda *_: dict(zip(("candidate", "baseline"), next(pairs), strict=True))) == verdict
    assert cell.confirmation == pytest.approx(fresh[0] / fresh[1])


def test_the_bootstrap_is_told_beside_the_interval_and_every_chance_is_printed() -> None:
    draw = np.random.default_rng(2)
    cell = GatedCell("cell", "output_tok_s", POLICY, is_paired=True)
    run_gate([cell], giving(100 * math.exp(draw.normal(0, 0.05)) for _ in range(99)))
    assert len(cell.candidate) == POLICY.max_sessions
    body = as_json([cell], cell.verdict, {})["cells"][0]
    shown = as_markdown([cell], cell.verdict, {})
    assert body["interval_bca"] == bca(cell.candidate, cell.baseline, "higher", is_paired=True)
    assert body["interval"][0] < body["interval_bca"][0] < body["ratio"] < body["interval_bca"][1]
    chances = " / ".join(f"{body[name]:.2g}" for name in ("p_worse", "p_adjusted", "p_rank"))
    assert f"| 8 v 8 | {chances} |" in shown and "Holm" in shown
    assert bca(cell.candidate[:7], cell.baseline, "higher", is_paired=False) is None


def test_holm_agrees_with_an_independent_implementation() -> None:
    from statsmodels.stats.multitest import multipletests

    draw = np.random.default_rng(5)
    for size in (1, 2, 7, 30):
        p_values = list(draw.uniform(0, 0.3, size))
        assert holm(p_values) == pytest.approx(list(multipletests(p_values, method="holm")[1]))


def test_one_cell_of_many_that_looks_bad_by_chance_is_corrected_for() -> None:
    cells = [
        GatedCell(
            f"cell{i}", "output_tok_s", POLICY, baseline=[100.0, 104.0, 97.0, 99.0], candidate=[101.0, 99.0, 103.0]
        )
        for i in range(40)
    ]
    cells[0].candidate = [96.2, 94.3, 95.1]
    assert verdict_of(cells[0].comparison, 0.03) == "FAIL", "alone it would fail"
    run_gate(cells, None)
    assert cells[0].verdict == "INCONCLUSIVE"


def test_without_enough_sessions_and_no_way_to_measure_nothing_passes() -> None:
    cell = GatedCell("cell", "output_tok_s", POLICY, baseline=[100.0] * 8, candidate=[150.0])
    assert run_gate([cell], None) == "INCONCLUSIVE"


def test_a_gate_without_cells_is_invalid() -> None:
    assert overall([]) == "INVALID"


def test_one_session_a_side_has_a_ratio_and_no_interval() -> None:
    comparison = compare([110.0], [100.0], "higher")
    assert comparison.ratio == pytest.approx(1.1)
    assert (comparison.interval, comparison.p_worse) == (None, None)


def test_a_metric_where_lower_is_better_is_turned_round() -> None:
    assert compare([5.0, 5.1, 4.9], [10.0, 10.1, 9.9], "lower").ratio == pytest.approx(2.0, rel=0.01)


def test_drift_that_both_sides_share_does_not_widen_a_paired_interval() -> None:
    drift = np.linspace(1.0, 0.9, 6)
    pairs = [(100 * d * (1 + 0.001 * i), 100 * d) for i, d in enumerate(drift)]
    paired = compare_paired(pairs, "higher")
    unpaired = compare([a for a, _ in pairs], [b for _, b in pairs], "higher")
    assert paired.interval is not None and unpaired.interval is not None
    assert paired.interval[1] - paired.interval[0] < 0.1 * (unpaired.interval[1] - unpaired.interval[0])


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_value_that_cannot_be_a_throughput_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        compare([value, 1.0], [1.0, 1.0], "higher")


@pytest.mark.parametrize(
    ("noise", "sessions", "percent"), [(0.005, 3, 0.9), (0.01, 3, 1.7), (0.02, 3, 3.5), (0.01, 5, 1.2)]
)
def test_the_bound_lies_as_far_below_as_published_simulations_say(noise: float, sessions: int, percent: float) -> None:
    assert 100 * bound_offset(noise, sessions) == pytest.approx(percent, abs=0.1)


def test_every_verdict_has_its_own_exit_code() -> None:
    assert len(set(EXIT_CODES.values())) == 4
    assert 2 not in EXIT_CODES.values()


def test_reports_agree_with_the_verdicts() -> None:
    cells, measure = simulated(3, change=-0.08, noise=0.005, changed=2)
    verdict = run_gate(cells, measure)
    body = as_json(cells, verdict, {"testbed": "cpu"})
    assert body["verdict"] == "FAIL" and body["exit_code"] == 1
    junit = ET.fromstring(as_junit(cells))
    assert junit.get("failures") == "2"
    assert len(junit.findall("testcase/failure")) == 2
    assert as_markdown(cells, verdict, {}).count("| FAIL |") == 2
