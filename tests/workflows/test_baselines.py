"""Baselines are comparable, recent and valid; thresholds below the noise are refused; blocks are fair."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from reports.json_files import sealed
from workflows import baselines
from workflows.blocks import block, order
from workflows.calibration import calibrate, load, save, upheld
from workflows.errors import WorkflowError
from workflows.planner import plan_session
from workflows.schema import GateMetric
from workloads.files import read_json, write_json

POLICY = GateMetric(direction="higher", max_regression=0.03, max_noise=0.02)


def measured(folder: Path, *, verdict: str = "VALID", cpu: str = "one", value: float | None = 100.0) -> Path:
    plan = plan_session("decode/baseline", "sp99_9", testbed_id="cpu")
    write_json(folder / "plan.json", plan.to_json())
    machine = {"cpu": cpu, "num_cpus": 2, "memory_gib": 24.0, "architecture": "x86_64"}
    packages = {"python": "3.11", "torch": "2.13"}
    provenance = {"code": {"commit": "abc"}, "machine": machine, "gpus": [], "packages": packages}
    write_json(folder / "provenance.json", provenance)
    write_json(folder / "status.json", {"started_unix_s": 1000.0})
    metrics = {
        "validity": {"verdict": verdict, "reasons": ["errors: 3 failed"]},
        "metrics": {"output_tok_s": value},
        "metrics_missing": {"output_tok_s": "no request ended"},
        "passes": [{"output_tok_s": 99.0}],
    }
    write_json(folder / "metrics.json", metrics)
    return folder


def test_an_invalid_session_is_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(WorkflowError, match="errors: 3 failed"):
        baselines.entry(measured(tmp_path, verdict="INVALID"), "output_tok_s")


def test_a_missing_value_says_why(tmp_path: Path) -> None:
    with pytest.raises(WorkflowError, match="output_tok_s has no value: no request ended"):
        baselines.entry(measured(tmp_path, value=None), "output_tok_s")


def test_a_changed_number_is_no_baseline(tmp_path: Path) -> None:
    folder = measured(tmp_path)
    write_json(folder / "metrics.json", sealed(read_json(folder / "metrics.json")))
    assert baselines.entry(folder, "output_tok_s")["value"] == 100.0
    (folder / "metrics.json").write_text((folder / "metrics.json").read_text().replace("100.0", "110.0"))
    with pytest.raises(WorkflowError, match="changed after it was computed"):
        baselines.entry(folder, "output_tok_s")


def test_damaged_stores_and_calibrations_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "cell.jsonl").write_text('{"key": "k"}\n')
    with pytest.raises(WorkflowError, match="jsonl:1 is no session of a store; take the line out"):
        baselines.load(tmp_path, "cell", "k", "output_tok_s")
    (tmp_path / "calibration.json").write_text('{"cells": [{"cell"')
    with pytest.raises(WorkflowError, match="delete it, and np1d calibrate writes it anew"):
        load(tmp_path / "calibration.json")


def test_another_machine_is_not_comparable(tmp_path: Path) -> None:
    one = baselines.entry(measured(tmp_path / "a", cpu="one"), "output_tok_s")
    two = baselines.entry(measured(tmp_path / "b", cpu="two"), "output_tok_s")
    assert one["key"] != two["key"]


def test_the_newest_ten_of_thirty_days_count(tmp_path: Path) -> None:
    one = baselines.entry(measured(tmp_path / "a"), "output_tok_s")
    day = 86400.0
    entries = [one | {"started_unix_s": number * day, "value": float(number)} for number in range(1, 61)]
    assert baselines.add(tmp_path / "store", "decode/baseline/sp99_9", entries) == 60
    found = baselines.load(tmp_path / "store", "decode/baseline/sp99_9", one["key"], "output_tok_s", now_s=50 * day)
    assert [line["value"] for line in found] == [float(number) for number in range(51, 61)]
    assert (
        baselines.load(tmp_path / "store", "decode/baseline/sp99_9", one["key"], "output_tok_s", now_s=100 * day) == []
    )


def test_a_session_is_stored_once(tmp_path: Path) -> None:
    one = baselines.entry(measured(tmp_path / "a"), "output_tok_s")
    assert baselines.add(tmp_path / "store", "cell", [one]) == 1
    assert baselines.add(tmp_path / "store", "cell", [one]) == 0


def noisy(between: float, sessions: int = 8) -> list[float]:
    return list(100 * np.exp(np.random.default_rng(7).normal(0, between, sessions)))


def test_a_calibration_of_too_few_sessions_is_refused() -> None:
    with pytest.raises(WorkflowError, match="needs 8 sessions and has 5"):
        calibrate("cell", "output_tok_s", noisy(0.01, 5), [])


def test_a_quiet_machine_upholds_three_percent() -> None:
    upheld(calibrate("cell", "output_tok_s", noisy(0.003), [[1.0, 1.01]] * 8), POLICY)


def test_a_threshold_below_the_noise_is_refused_with_what_to_write_instead() -> None:
    one, strict = (
        calibrate("cell", "output_tok_s", noisy(0.013), []),
        POLICY.model_copy(update={"max_regression": 0.01}),
    )
    with pytest.raises(
        WorkflowError, match=r"8 sessions .* cannot uphold a max_regression of 1\.0%; set max_regression to"
    ):
        upheld(one, strict)


def test_a_gate_measures_as_many_as_the_noise_asks_for() -> None:
    one = calibrate("cell", "output_tok_s", noisy(0.013), [])
    enough = upheld(one, POLICY).min_sessions
    assert POLICY.min_sessions < enough <= POLICY.max_sessions
    assert one.least_regression(enough) <= POLICY.max_regression < one.least_regression(enough - 1)


def test_a_machine_noisier_than_allowed_is_refused() -> None:
    with pytest.raises(WorkflowError, match="quieten the machine or lengthen the windows"):
        upheld(calibrate("cell", "output_tok_s", noisy(0.06), []), POLICY)


def test_pairs_uphold_a_threshold_by_the_noise_of_their_ratios() -> None:
    ratios = [value / 100 for value in noisy(0.02)]
    one = calibrate("cell", "output_tok_s", ratios, [], is_paired=True)
    assert one.between == pytest.approx(0.02, rel=0.5)
    assert one.least_regression(5) == pytest.approx(2 * 2.132 * one.between / 5**0.5, rel=0.03)
    assert "between the ratios of 8 pairs, their mean" in one.sentence(POLICY)
    policy = POLICY.model_copy(update={"max_regression": 0.06, "min_sessions": 2})
    assert one.least_regression(upheld(one, policy).min_sessions) <= 0.06 < one.least_regression(2)


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    one = calibrate("cell", "output_tok_s", noisy(0.01), [[1.0, 1.02], [1.0, 0.99]])
    paired = calibrate("cell", "output_tok_s", noisy(0.01), [], is_paired=True)
    save(tmp_path / "calibration.json", [one, paired])
    assert load(tmp_path / "calibration.json") == [one, paired]
    assert one.kind != paired.kind


def test_every_block_holds_every_cell_once() -> None:
    cells = [f"cell{i}" for i in range(7)]
    for session in range(5):
        assert Counter(block(cells, session, seed=3)) == Counter(cells)


def test_two_cells_go_abba() -> None:
    sequence = [cell for cell, _ in order(["a", "b"], 4, seed=0)]
    assert sequence[:4] in (["a", "b", "b", "a"], ["b", "a", "a", "b"])
    assert sequence[4:] in (["a", "b", "b", "a"], ["b", "a", "a", "b"])


def test_a_later_session_leaves_the_places_of_earlier_ones() -> None:
    cells = [f"cell{i}" for i in range(5)]
    assert order(cells, 5, seed=1)[: 3 * 5] == order(cells, 3, seed=1)


def test_another_seed_gives_another_order() -> None:
    cells = [f"cell{i}" for i in range(9)]
    assert block(cells, 0, seed=1) != block(cells, 0, seed=2)
