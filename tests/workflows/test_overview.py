"""The list of results shows a value as it is, and says what a score of random weights is."""

import io

from rich.console import Console

from workflows.overview import outcomes, result_table
from workloads.files import write_json

NOISE = "the tiny checkpoint has random weights: its scores are noise"


def shown(tmp_path, metric, value, left_out):
    folder = tmp_path / "cpu" / "accuracy" / "row" / "load" / "s0"
    folder.mkdir(parents=True)
    write_json(folder / "status.json", {"status": "ok", "kind": None, "reason": "", "cell": {"testbed": "cpu"}})
    write_json(folder / "plan.json", {"schema": "plan/1"})
    validity = {"verdict": "VALID", "reasons": []}
    write_json(
        folder / "metrics.json",
        {"validity": validity, "metric": metric, "metrics": {metric: value}, "left_out": left_out},
    )
    out = io.StringIO()
    Console(file=out, width=200).print(result_table(outcomes(tmp_path), None))
    return out.getvalue()


def test_a_ratio_keeps_its_digits_and_random_weights_their_word(tmp_path):
    text = shown(tmp_path, "accuracy_ratio", 0.957, {"trained_model": NOISE})
    assert "0.957 accuracy_ratio" in text and NOISE in text


def test_a_throughput_is_shown_in_thousands_and_without_a_word_on_scores(tmp_path):
    text = shown(tmp_path, "output_tok_s", 12027.04, {"trained_model": NOISE})
    assert "12,027.0 output_tok_s" in text and NOISE not in text
