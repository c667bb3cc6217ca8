"""Scores are shown once, with what they may be held against; two stacks are compared item by item."""

import json

import pandas as pd

from reports.material import Material, collect
from reports.results import load_results
from reports.tables.accuracy import accuracy_items, accuracy_pairs, accuracy_table
from tests.support.result_tree import REAL, ResultTree

RUN = {"run": 0, "accuracy": 0.957, "ci95": [0.945, 0.967], "num_answered": 1314}
VALID = {"verdict": "VALID", "runs": [RUN], "unanswered": {"count": 0}, "reasons": []}


def _material(tmp_path, body):
    tree = ResultTree(tmp_path, "full", REAL)
    metrics = {"output_tok_s": 1.0, "accept_length": 4.9}
    folder = tree.add("accuracy/gsm8k_optimized/gsm8k_5shot", metrics=metrics)
    (folder / "accuracy.json").write_text(json.dumps(body))
    (folder / "attempts" / "0001").mkdir(parents=True)
    (folder / "attempts" / "0001" / "accuracy.json").write_text(json.dumps(body))
    return tree, collect(load_results(tree.folder))


def test_a_scored_run_is_shown_once_and_held_against_the_published_mean(tmp_path):
    body = {"verdict": "VALID", "runs": [RUN], "unanswered": {"count": 0}}
    _, material = _material(tmp_path, body)
    (row,) = accuracy_table(material).frame.to_dict("records")
    assert (row["accuracy_pct"], row["accept_length"], row["verdict"]) == (95.7, 4.9, "VALID")
    (held,) = [one for one in material.held if one.claim.metric == "accuracy_pct"]
    assert held.verdict.value == 95.7 or abs(held.verdict.value - 95.7) < 1e-9


def test_an_invalid_score_is_its_reason(tmp_path):
    body = {"verdict": "INVALID", "reasons": ["9 of 100 items are unanswered"], "diagnostics": [RUN]}
    _, material = _material(tmp_path, body)
    table = accuracy_table(material)
    assert "95.7" not in table.csv() and "9 of 100" in table.csv()
    assert not [one for one in material.held if one.claim.metric == "accuracy_pct" and one.verdict.value]


def _two_rows(tmp_path, labels) -> Material:
    tree = ResultTree(tmp_path, "full", labels)
    for row, right in (("gsm8k_baseline", 40), ("gsm8k_optimized", 30)):
        folder = tree.add(f"accuracy/{row}/gsm8k_5shot", metrics={"output_tok_s": 1.0})
        (folder / "accuracy.json").write_text(json.dumps(VALID))
        items = [
            {"run": 0, "question": i, "gold": "2", "answer": "2", "correct": i < right, "text": "2"} for i in range(40)
        ]
        frame = pd.DataFrame(items).assign(status="answered", output_tokens=3)
        frame.to_csv(folder / "items.csv", index=False)
    return collect(load_results(tree.folder))


def test_a_row_that_answers_worse_than_the_baseline_says_so(tmp_path):
    material = _two_rows(tmp_path, REAL)
    (pair,) = accuracy_pairs(material).frame.to_dict("records")
    assert (pair["row"], pair["verdict"], pair["only_baseline_right"], pair["pairs"]) == (
        "gsm8k_optimized",
        "worse",
        10,
        40,
    )
    assert pair["difference_points"] == -25.0
    assert len(accuracy_items(material).frame) == 80


def test_scores_of_random_weights_are_noise_wherever_they_are_shown(tmp_path):
    material = _two_rows(tmp_path, REAL | {"weights": "random"})
    words = "random weights: the scores are noise, not comparable"
    assert set(accuracy_table(material).frame["reason"]) == {words}
    assert set(accuracy_pairs(material).frame["verdict"]) == {"not comparable"}
    (held,) = [one for one in material.held if one.claim.metric == "accuracy_pct"]
    assert held.verdict.outcome == "not comparable"
