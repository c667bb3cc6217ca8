"""The small checkpoint's text: right answers, nothing held out in training, the same text from the same seed."""

import ast
import operator
import random
import re
from itertools import islice

import pytest

from workloads.corpus import documents, retrieval_items, stories
from workloads.corpus.retrieval import retrieval_text
from workloads.corpus.sums import MOST, Sum
from workloads.numbers import answer_of
from workloads.scoring import items_of
from workloads.sources import source_for
from workloads.spec import resolve

_MARKED = re.compile(r"<<(\d+[-+*/]\d+)=(\d+)>>(\d+)")
_SUM = re.compile(r"(\d+) ?([-+*/]) ?(\d+) ?= ?(\d+)")


def evaluated(expression: str) -> float:
    """A sum by Python's own parser."""
    node = ast.parse(expression, mode="eval").body
    assert isinstance(node, ast.BinOp)
    kinds = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
    return kinds[type(node.op)](ast.literal_eval(node.left), ast.literal_eval(node.right))


def told(split, count=600, seed=3):
    return list(islice(stories(seed, split), count))


def solved(question: str) -> int:
    """The question's number from its sentences alone, read by other rules than those that wrote it."""
    first, *events = re.split(r"(?<=[.?]) ", question)
    value = int(re.search(r"\d+", first).group())
    for sentence in events[:-1]:
        k = int(re.search(r"\d+", sentence).group())
        if "brings" in sentence or "found" in sentence or "adds" in sentence:
            value += k
        elif "sold" in sentence or "takes" in sentence or "lost" in sentence:
            value -= k
        elif "times as many" in sentence:
            value *= k
        else:
            assert "shared" in sentence or "Only one" in sentence, sentence
            assert value % k == 0
            value //= k
    return value


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_answers_are_right_by_an_independent_solver(split):
    for story in told(split):
        assert int(answer_of(story.answer)) == solved(story.question)
        for expression, result, shown in _MARKED.findall(story.answer):
            assert evaluated(expression) == int(result) == int(shown)


def test_training_and_held_out_stories_share_neither_pattern_nor_all_sums():
    train, held_out = told("train", 4000), told("held_out", 1005)
    assert not {s.pattern for s in train} & {s.pattern for s in held_out}
    seen = {one for s in train for one in s.sums}
    assert all(any(one.is_held_out for one in s.sums) for s in held_out)
    assert not any(one.is_held_out for one in seen)


def test_no_training_document_shows_a_held_out_sum():
    for document in islice(documents(11), 1500):
        for first, operation, second, result in _SUM.findall(document.text):
            one = Sum(int(first), operation, int(second))
            assert not one.is_held_out, document.text
            assert one.result == int(result) <= MOST


def test_a_seed_gives_the_same_documents_and_another_gives_others():
    assert list(islice(documents(1), 50)) == list(islice(documents(1), 50))
    assert list(islice(documents(1), 50)) != list(islice(documents(2), 50))


@pytest.mark.parametrize("lines_behind", [0, 10, 64])
def test_a_needle_stands_at_its_depth_and_its_answer_is_never_trained(lines_behind):
    trained = "".join(retrieval_text(random.Random(i)) for i in range(400))
    for item in retrieval_items(5, lines_behind, 40):
        *lines, question = item.prompt.split("\n")
        wanted = question.removeprefix("Number of the ").removesuffix(":")
        places = [i for i, line in enumerate(lines) if line.startswith(f"The {wanted}:")]
        assert len(places) == 1
        assert len(lines) - 1 - places[0] == lines_behind
        assert lines[places[0]].endswith(f":{item.answer}.")
        assert lines[places[0]] not in trained


def test_mini_gsm_asks_held_out_stories_behind_five_examples_and_can_be_scored():
    workload = resolve("mini_gsm", {"items": 50, "requests_per_pass": 50})
    items, prompts = items_of(workload), source_for(workload).conversations(1, 50)
    assert [item.index for item in items] == list(range(5, 55))
    for item, conversation in zip(items, prompts, strict=True):
        text = conversation.turns[0].text
        assert text.count("Question: ") == 6 and text.count("####") == 5
        assert text.endswith(f"Question: {item.question}\nAnswer:")
        assert int(answer_of(item.answer)) == solved(item.question)


def test_retrieval_asks_every_depth_equally_often_and_can_be_scored():
    items = items_of(resolve("retrieval", {}))
    assert len(items) == 350
    assert len({item.question for item in items}) == 350
    assert all(int(answer_of(item.answer)) >= 100 for item in items)
