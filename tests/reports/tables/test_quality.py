"""Operating points appear when there are some."""

import json

import pytest

from reports.material import collect
from reports.results import load_results
from reports.tables.quality import operating_points
from tests.support.result_tree import REAL, ResultTree


def test_a_found_operating_point_is_a_row(tmp_path):
    tree = ResultTree(tmp_path, "full", REAL)
    tree.add("decode/baseline/sp99_9", metrics={"output_tok_s": 1.0})
    best = {"output_tok_s": 4190.0, "concurrency": 33, "repeats": 3}
    point = {"levels": ["ttft mean < 6 s"], "best": best, "largest_holding": 33, "smallest_breaking": 34}
    (tree.folder / "operating_point.json").write_text(json.dumps(point | {"confidence": "95 %"}))
    (row,) = operating_points(collect(load_results(tree.folder))).frame.to_dict("records")
    assert (row["at_concurrency"], row["output_tok_s"], row["where"]) == (33, 4190.0, ".")


def test_points_of_both_sides_give_a_ratio_beside_the_published_one(tmp_path):
    tree = ResultTree(tmp_path, "full", REAL)
    for row, rate in (("baseline", 2400.0), ("optimized", 9600.0)):
        folder = tree.add(f"integrated/{row}/sp93_75_point", metrics={"output_tok_s": rate})
        body = {"best": {"output_tok_s": rate, "concurrency": 94}, "probes": [{"concurrency": 47}], "ended": "no time"}
        (folder / "operating_point.json").write_text(json.dumps(body))
    rows = operating_points(collect(load_results(tree.folder))).frame.to_dict("records")
    assert [row["published_over"] for row in rows] != [4.28, 4.28]
    assert (rows[1]["over"], rows[1]["published_over"], rows[1]["ended"]) == (pytest.approx(4.0), 4.28, "no time")
