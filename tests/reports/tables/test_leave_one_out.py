"""A step taken out of everything on."""

import pytest

from reports.material import collect
from reports.results import load_results
from reports.tables.leave_one_out import leave_one_out
from tests.support.result_tree import REAL, ResultTree


def test_a_variant_is_held_against_everything_on(tmp_path):
    tree = ResultTree(tmp_path, "full", REAL)
    for index in range(3):
        everything = 12_000.0 + index
        tree.add("decode/dflash2_tuned_moe_dsa_partial/sp99_9", index, metrics={"output_tok_s": everything})
        tree.add("decode/without_fp8_kv/sp99_9", index, metrics={"output_tok_s": 0.75 * everything})
    table = leave_one_out(collect(load_results(tree.folder)))
    (row,) = table.frame.to_dict("records")
    assert (row["step"], row["sessions"]) == ("fp8_kv", 3)
    assert row["without_over_all"] == pytest.approx(0.75) and row["low"] == pytest.approx(0.75)
    assert table.display.iloc[0]["without it / everything on"] == "0.75x [0.75, 0.75]"


def test_without_variants_it_says_so(tmp_path):
    tree = ResultTree(tmp_path, "full", REAL)
    tree.add("decode/baseline/sp99_9", metrics={"output_tok_s": 1.0})
    assert leave_one_out(collect(load_results(tree.folder))).is_empty
