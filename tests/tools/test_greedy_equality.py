"""The engine's texts are held against transformers', and another text is noticed."""

import json

import pytest
import torch

from stack.models.tiny import write_tiny
from tests.support.glm_reference import GlmReference
from tools import greedy_equality
from tools.greedy_equality import first_difference, main


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    write_tiny(folder / "tiny", dtype="float32")
    items = [{"question": f"What is {i} and {i}?", "answer": f"#### {2 * i}"} for i in range(8)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    return [str(folder / "tiny"), "--questions", str(folder / "questions.jsonl"), "--count", "3", "--tokens", "12"]


@pytest.mark.slow
def test_the_engines_texts_are_the_judges(asked, capsys):
    assert main(asked) == 0
    assert "3 answers, 36 tokens: 3 equal" in capsys.readouterr().out


@pytest.mark.slow
def test_another_models_texts_are_no_success(asked, capsys, monkeypatch, tmp_path):
    write_tiny(tmp_path, dtype="float32", seed=1)
    monkeypatch.setattr(greedy_equality, "GlmReference", lambda folder: GlmReference(tmp_path))
    assert main(asked) == 1
    assert "NOT EQUAL" in capsys.readouterr().out


def test_the_first_difference_has_its_gap():
    logits = torch.zeros(4, 3)
    logits[1, 2], logits[2, 0], logits[2, 1] = 1.0, 1.0, 0.75
    found = first_difference(7, logits, [0, 1, 2, 1], 2)
    assert (found.prompt, found.place, found.ours, found.judge, found.gap) == (7, 1, 1, 0, 0.25)
    assert first_difference(7, logits, [0, 1, 2, 0], 2) is None
