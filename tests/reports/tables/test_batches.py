"""Requests, pages and experts of decode batches, beside what the report prints."""

import json
import math

import pytest

from reports.experts import read_experts
from reports.material import collect
from reports.results import load_results
from reports.tables.batches import batches_table, further_points
from tests.support.result_tree import REAL, ResultTree

SHARES = [
    {"width": 1, "requests": 2, "mean": 0.2, "least": 0.1},
    {"width": 1, "requests": 8, "mean": 0.6, "least": 0.5},
    {"width": 8, "requests": 4, "mean": 1.0, "least": 1.0},
]


def test_medians_stand_beside_the_published_ones_and_experts_beside_the_rows_of_a_step(tmp_path):
    tree = ResultTree(tmp_path, "full", REAL)
    metrics = {"output_tok_s": 2700.0, "running_p50": 4.0, "pages_used_p50_ratio": 0.36}
    tree.add("decode/baseline/sp99_9", metrics=metrics)
    body = {"schema": "experts_touched/1", "source": "routes of somewhere", "shares": SHARES}
    (tree.folder / "experts.json").write_text(json.dumps(body))
    table = batches_table(collect(load_results(tree.folder)))
    (row,) = table.frame.to_dict("records")
    assert (row["published_running"], row["ours_running"]) == (54, pytest.approx(4))
    assert (row["published_pages_pct"], row["ours_pages_pct"]) == (98, pytest.approx(36))
    assert row["rows_a_step"] == pytest.approx(3.5)
    assert 20 < row["experts_pct"] < 60
    assert "routes of somewhere" in table.caption


def test_shares_lie_between_counted_batches_and_are_not_guessed_below_the_smallest(tmp_path):
    (tmp_path / "experts.json").write_text(json.dumps({"shares": SHARES}))
    experts = read_experts(tmp_path)
    assert experts.share(4, 1) == pytest.approx(0.4)
    assert (experts.share(8, 1), experts.share(100, 1)) == (0.6, 0.6)
    assert math.isnan(experts.share(1, 1)) and math.isnan(experts.share(4, 6))
    assert math.isnan(read_experts(tmp_path / "nowhere").share(4, 1))


def test_other_loads_of_a_row_have_a_table_of_their_own(tmp_path):
    tree = ResultTree(tmp_path, "full", REAL)
    tree.add("decode/baseline/sp99_9", metrics={"output_tok_s": 2700.0})
    tree.add("decode/baseline/unshared", metrics={"output_tok_s": 2500.0, "running_p50": 58.0})
    material = collect(load_results(tree.folder))
    (row,) = further_points(material).frame.to_dict("records")
    assert (row["workload"], row["output_tok_s"], row["running"]) == ("unshared", pytest.approx(2500), 58)
    assert list(batches_table(material).frame["row"]) == ["baseline"]
