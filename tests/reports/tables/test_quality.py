"""Accuracy and operating points appear when there are some, and an INVALID score is no number."""

import json

from reports.material import collect
from reports.results import load_results
from reports.tables.quality import accuracy_table, operating_points
from tests.support.result_tree import REAL, ResultTree

RUN = {"run": 0, "accuracy": 0.957, "ci95": [0.945, 0.967], "num_answered": 1314}


def _material(tmp_path, body):
    tree = ResultTree(tmp_path, "full", REAL)
    folder = tree.add("accuracy/gsm8k_optimized/gsm8k_5shot", metrics={"output_tok_s": 1.0})
    (folder / "accuracy.json").write_text(json.dumps(body))
    (folder / "attempts" / "0001").mkdir(parents=True)
    (folder / "attempts" / "0001" / "accuracy.json").write_text(json.dumps(body))
    return tree, collect(load_results(tree.folder))


def test_a_scored_run_is_shown_once_and_held_against_the_published_mean(tmp_path):
    body = {"verdict": "VALID", "runs": [RUN], "unanswered": {"count": 0}}
    _, material = _material(tmp_path, body)
    (row,) = accuracy_table(material).frame.to_dict("records")
    assert (row["accuracy_pct"], row["verdict"]) == (95.7, "VALID")
    (held,) = [one for one in material.held if one.claim.metric == "accuracy_pct"]
    assert held.verdict.value == 95.7 or abs(held.verdict.value - 95.7) < 1e-9


def test_an_invalid_score_is_its_reason(tmp_path):
    body = {"verdict": "INVALID", "reasons": ["9 of 100 items are unanswered"], "diagnostics": [RUN]}
    _, material = _material(tmp_path, body)
    table = accuracy_table(material)
    assert "95.7" not in table.csv() and "9 of 100" in table.csv()
    assert not [one for one in material.held if one.claim.metric == "accuracy_pct" and one.verdict.value]


def test_a_found_operating_point_is_a_row(tmp_path):
    tree, _ = _material(tmp_path, {})
    best = {"output_tok_s": 4190.0, "concurrency": 33, "repeats": 3}
    point = {"levels": ["ttft mean < 6 s"], "best": best, "largest_holding": 33, "smallest_breaking": 34}
    (tree.folder / "operating_point.json").write_text(json.dumps(point | {"confidence": "95 %"}))
    (row,) = operating_points(collect(load_results(tree.folder))).frame.to_dict("records")
    assert (row["at_concurrency"], row["output_tok_s"], row["where"]) == (33, 4190.0, ".")
