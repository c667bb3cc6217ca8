"""Prefill supply and decode capacity, from the rows that measure each half alone."""

import json

import pytest

from reports.material import collect
from reports.results import load_results
from reports.tables.balance import Halves, balance
from reports.tables.integrated import checks
from tests.support.result_tree import REAL, ResultTree

SHAPE = {"input_len": 65536, "output_len": 1024, "shared_ratio": 0.5, "concurrency": 33}
PREFILL, DECODE = "prefill/fp8_comm_fusion_scheduling", "decode/dflash2_tuned_moe_dsa_partial"


@pytest.fixture
def tree(tmp_path):
    tree = ResultTree(tmp_path, "full", REAL)
    folder = tree.add("integrated/optimized/sp50", metrics={"output_tok_s": 700.0})
    plan = json.loads((folder / "plan.json").read_text())
    plan |= {
        "conditions": {"published": SHAPE, "scaled": SHAPE},
        "measured_alone": {"prefill": PREFILL, "decode": DECODE},
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    return tree


@pytest.mark.parametrize(
    ("shared", "bound", "best", "reached"),
    [(0.0, 2253, (3, 1), 2253), (0.5, 4506, (3, 1), 4506), (0.9375, 12_027, (2, 2), 24_032)],
)
def test_the_published_rates_give_the_published_outputs(shared, bound, best, reached):
    halves = Halves(48_064, 12_027, 65_536 * (1 - shared), 1024)
    assert halves.output(3, 1) == pytest.approx(bound, abs=1)
    assert halves.best(4) == best
    assert halves.output(*best) == pytest.approx(reached, abs=1)


def test_ours_are_held_against_the_lesser_half(tree):
    tree.add(f"{PREFILL}/prefill_only", metrics={"input_tok_s": 25_600.0})
    tree.add(f"{DECODE}/sp99_9", metrics={"output_tok_s": 1000.0})
    table = balance(collect(load_results(tree.folder)))
    published, ours = table.frame.to_dict("records")
    assert published["bound_tok_s"] == pytest.approx(4506, abs=1)
    assert published["share_pct"] == pytest.approx(93, abs=0.1)
    assert (ours["supply_tok_s"], ours["capacity_tok_s"]) == pytest.approx((800, 1000))
    assert ours["share_pct"] == pytest.approx(87.5)
    assert table.display.iloc[1]["split"] == "1P1D"


def test_a_half_that_was_not_measured_alone_gives_no_line_of_ours(tree):
    tree.add(f"{PREFILL}/prefill_only", metrics={"input_tok_s": 25_600.0})
    assert list(balance(collect(load_results(tree.folder))).frame["source"]) == ["published"]


def test_a_half_that_was_measured_alone_on_another_testbed_counts_where_the_model_is_the_same(tree, tmp_path):
    tree.add(f"{PREFILL}/prefill_only", metrics={"input_tok_s": 25_600.0})
    other = ResultTree(tmp_path, "other", {**REAL, "admission": "synthetic"})
    other.add(f"{DECODE}/sp99_9", metrics={"output_tok_s": 1.0}, status={"measured_code": "older"})
    other.add(f"{DECODE}/sp99_9", 1, metrics={"output_tok_s": 1000.0})
    larger = ResultTree(tmp_path, "larger", {**REAL, "scale": "another"})
    larger.add(f"{DECODE}/sp99_9", metrics={"output_tok_s": 9000.0})
    material = collect(load_results(tree.folder))
    ours = balance(material).frame.to_dict("records")[1]
    assert (ours["capacity_tok_s"], ours["alone"]) == (pytest.approx(1000), "full, other")
    found = {row["check"]: row["holds"] for row in checks(material).frame.to_dict("records")}
    assert found["output of the lesser half, %"] == "no" and found["hand-off p95, ms"] == "not known"


def test_without_integrated_sessions_it_says_so(tmp_path):
    tree = ResultTree(tmp_path, "full", REAL)
    tree.add(f"{DECODE}/sp99_9", metrics={"output_tok_s": 1000.0})
    assert balance(collect(load_results(tree.folder))).is_empty
