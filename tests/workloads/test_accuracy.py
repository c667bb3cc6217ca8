"""Accuracy: the right number out of any text, errors apart from wrong answers, pairs compared as pairs."""

import json
import random
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest
from fault_server import Script, serve
from gsm8k_server import solving

from workloads.accuracy import accuracy_workload, main
from workloads.client import Target, run_workload
from workloads.numbers import answer_of, cut_at_stops, last_number
from workloads.paired import Paired, compare_pairs, mcnemar_exact, newcombe_interval
from workloads.scoring import compare_folders, items_of, pair_items, score_folder
from workloads.sources.gsm8k import few_shot_prefix, load_questions, question_prompt
from workloads.spec import Scoring, SpecError, resolve

STOPS = ["Question", "Assistant:", "<|separator|>"]
ANSWERS = [
    ("#### 18", "18"), ("The answer is 18.", "18"), ("#### -5", "-5"), ("#### 1,834", "1834"),
    ("#### 1,234,567", "1234567"), ("#### $1,000.00", "1000"), ("#### 3.50", "3.5"), ("#### .5", "0.5"),
    ("#### -$20", "-20"), ("#### $-20", "-20"), ("#### \u221212", "-12"), ("from 10-12 days", "12"),
    ("a range of 3\u20135", "5"), ("x = -7", "-7"), ("(-7)", "-7"), ("5 - 3 = 2", "2"), ("5-3=2", "2"),
    ("It is **42**", "42"), ("\\boxed{42}", "42"), ("42%", "42"), ("18kg", "18"), ("#### 18 dollars and 5 cents", "18"),
    ("#### 18\nQuestion: 3+4?\nAnswer: 7\n#### 7", "18"), ("no number", None), ("", None), ("####", None),
    ("The total is 12\n####", "12"), ("1,2,3", "3"), ("$5, $6", "6"), ("10,000", "10000"), ("1e3", "1000"),
    ("18.", "18"), ("18.0", "18"), ("#### +5", "5"), ("12\u202f500", "12500"), ("cost: $3", "3"), ("abc-5", "5"),
    ("#### 0", "0"), ("007", "7"), ("#### 70,000 ", "70000"), ("so 5*-2 = -10", "-10"), ("-3.5 degrees", "-3.5"),
    ("She has 3 apples, so\n#### 3 apples", "3"), ("#### 1,834.0", "1834"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "number"), ANSWERS, ids=[repr(t)[:30] for t, _ in ANSWERS])
def test_48_the_answer_is_the_number_it_gives(text, number):
    assert answer_of(text) == (None if number is None else Decimal(number))


def test_48_text_after_a_stop_is_no_answer():
    text = " 3+4=7\n#### 7\n\nQuestion: What is 9+9?\nAnswer: 18"
    assert last_number(text) == 18, "the trap"
    assert answer_of(cut_at_stops(text, STOPS)) == 7 == last_number(cut_at_stops(text, STOPS))


@pytest.fixture
def data(tmp_path):
    """A file of sums in GSM8K's form."""
    draw, path = random.Random(5), tmp_path / "sums.jsonl"
    lines = []
    for i in range(45):
        a, b = draw.randint(1, 2000), draw.randint(1, 2000)
        lines.append({"question": f"Item {i}: what is {a} + {b}?", "answer": f"{a}+{b}={a + b}\n#### {a + b:,}"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def run(tmp_path, data, server, name="run", **changes):
    workload = accuracy_workload(data, sha256=None, concurrency=8, max_tokens=64, **changes)
    run_workload(workload, Target(url=server.url), tmp_path / name, progress=False)
    return score_folder(tmp_path / name)


def test_the_prompt_has_the_published_form(data):
    questions = load_questions(data)
    shots = few_shot_prefix(questions, 5)
    one = questions[0]
    assert shots.startswith(f"Question: {one.question}\nAnswer: {one.answer}\n\nQuestion: ")
    assert question_prompt(questions[5]).endswith("?\nAnswer:")
    assert shots.count("Question: ") == 5


@pytest.mark.parametrize(("questions", "count"), [(1314, 40), (1319, 45)])
def test_both_variants_ask_their_questions_in_two_runs(tmp_path, data, questions, count):
    with serve(solving(data)) as server:
        body = run(tmp_path, data, server, questions=questions)
    assert body["verdict"] == "VALID" and body["num_items"] == count and body["shots"] == 5
    assert [r["accuracy"] for r in body["runs"]] == [1.0, 1.0] and body["changed_between_runs"] == 0
    items = pd.read_csv(tmp_path / "run" / "items.csv")
    assert len(items) == 2 * count and sorted(set(items["question"])) == list(range(45 - count, 45))
    bodies = server.seen.bodies
    assert bodies[1]["stop"] == STOPS and bodies[1]["temperature"] == 0.0


def test_48_wrong_answers_count_and_run_on_text_does_not(tmp_path, data):
    with serve(solving(data, wrong_every=4, runs_on=True)) as server:
        body = run(tmp_path, data, server, runs=1)
    assert body["runs"][0]["num_correct"] == 30 and body["runs"][0]["accuracy"] == 0.75
    low, high = body["runs"][0]["ci95"]
    assert low < 0.75 < high


def test_48_server_errors_are_unanswered_never_wrong(tmp_path, data):
    script = solving(data)
    script.fail_every = 20
    with serve(script) as server:
        body = run(tmp_path, data, server, runs=1)
    assert body["verdict"] == "INVALID" and "2 of 40 items are unanswered (5.00%, limit 0.50%)" in body["reasons"]
    assert "runs" not in body and body["status_counts"] == {"answered": 38, "error": 2}
    assert body["diagnostics"][0]["accuracy"] == 1.0, "what was answered was right"


def test_truncated_answers_are_unanswered(tmp_path, data):
    with serve(Script(tokens_per_chunk=64)) as server:
        body = run(tmp_path, data, server, runs=1)
    assert body["verdict"] == "INVALID" and body["status_counts"] == {"truncated": 40}


def test_where_it_is_declared_a_truncated_answer_counts_by_its_last_number(tmp_path, data):
    with serve(Script(tokens_per_chunk=64)) as server:
        run(tmp_path, data, server, runs=1)
    body = score_folder(tmp_path / "run", Scoring(truncated="last_number"))
    assert body["verdict"] == "VALID" and body["truncated"] == "last_number"
    assert body["accuracy"] == 0.0 and body["status_counts"] == {"truncated": 40}


def test_traffic_without_known_answers_cannot_be_scored():
    with pytest.raises(SpecError, match="source random knows no answers"):
        items_of(resolve("prefill"))


def test_two_stacks_are_compared_item_by_item(tmp_path, data):
    for name, script in (("a", solving(data)), ("b", solving(data, wrong_every=10))):
        with serve(script) as server:
            run(tmp_path, data, server, name=name)
    same = compare_folders(tmp_path / "a", tmp_path / "a", margin=0.06)
    worse = compare_folders(tmp_path / "a", tmp_path / "b", margin=0.015)
    assert same["verdict"] == "not_worse" and same["mcnemar_p"] == 1.0 and same["difference"] == 0
    assert worse["pairs"] == {"both": 72, "only_first": 8, "only_second": 0, "neither": 0, "left_out": 0}
    assert worse["mcnemar_p"] == pytest.approx(2 * 0.5**8) and worse["verdict"] == "worse"


def test_newcombe_and_mcnemar_against_published_values():
    # Newcombe 1998, method 10, table (36, 12, 2, 0): 0.2000 with 0.0569 to 0.3404
    low, high = newcombe_interval(Paired(both=36, only_second=12, only_first=2, neither=0))
    assert (round(low, 4), round(high, 4)) == (0.0569, 0.3404)
    assert mcnemar_exact(Paired(both=0, only_first=2, only_second=12, neither=0)) == pytest.approx(212 / 2**14)


def test_a_difference_inside_the_margin_is_not_worse():
    close = Paired(both=1240, only_first=12, only_second=10, neither=52)
    assert compare_pairs(close, margin=0.015)["verdict"] == "not_worse"
    unclear = Paired(both=600, only_first=30, only_second=20, neither=7)
    assert compare_pairs(unclear, margin=0.015)["verdict"] == "inconclusive"


def test_unanswered_items_leave_the_pairs():
    frame = pd.DataFrame({"run": [0, 0, 0], "question": [1, 2, 3], "correct": [True, None, False]})
    other = pd.DataFrame({"run": [0, 0, 0], "question": [1, 2, 3], "correct": [True, True, True]})
    paired = pair_items(frame, other)
    assert (paired.both, paired.only_second, paired.left_out) == (1, 1, 1)


def test_mistakes_have_one_sentence(tmp_path, data, capsys):
    assert (
        main(["run", "--url", "http://127.0.0.1:9", "--data", str(tmp_path / "no"), "--out", str(tmp_path / "o")]) == 2
    )
    assert "there is no data file" in capsys.readouterr().err
    with pytest.raises(SpecError, match="not the declared"):
        accuracy_workload(data)
    with pytest.raises(SpecError, match="1314"):
        accuracy_workload(data, questions=1000)


def test_the_real_file_has_1314_and_1319_questions():
    beside = Path(__file__).parents[3].glob("*/data/gsm8k/test.jsonl")
    path = next(iter(beside), None)
    if path is None:
        pytest.skip("no folder beside this checkout holds data/gsm8k/test.jsonl")
    assert accuracy_workload(str(path)).num_measured == 1314
    assert accuracy_workload(str(path), questions=1319).num_measured == 1319
    questions = load_questions(str(path))
    golds = [last_number(q.answer) for q in questions]
    assert all(g == answer_of(q.answer) for g, q in zip(golds, questions, strict=True)) and None not in golds
