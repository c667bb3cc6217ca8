"""Needles are found exactly where greedy decoding would tell them, and read back by depth."""

import torch
from tokenizers import Tokenizer

from stack.training.generation import answer_in_turn
from stack.training.needles import Needles
from stack.training.sizes import TEXT_CONFIG
from workloads.corpus.__main__ import main as corpus

TOKENIZER = "workloads/checkpoints/tiny_trained/tokenizer.json"


def test_found_is_what_greedy_decoding_tells(tensors):
    prompts = [torch.randint(2, 500, (150,), generator=torch.Generator().manual_seed(seed)).tolist() for seed in (1, 2)]
    told = answer_in_turn(tensors, TEXT_CONFIG, [[p] for p in prompts], stop=[-1], limit=3, capacity=160)
    rows = torch.tensor([row.tokens[:153] for row in told])
    is_answer = torch.zeros_like(rows, dtype=torch.bool)
    is_answer[:, 150:] = True
    assert Needles(rows, is_answer, [2, 8]).found(tensors, TEXT_CONFIG, is_sparse=True) == {"2": 1.0, "8": 1.0}
    rows[1, 152] = (rows[1, 152] + 1) % 500
    assert Needles(rows, is_answer, [2, 8]).found(tensors, TEXT_CONFIG, is_sparse=True) == {"2": 1.0, "8": 0.0}


def test_items_are_read_evenly_by_depth_and_end_in_their_answers(tmp_path):
    corpus(["retrieval", str(tmp_path / "needles.jsonl"), "--lines", "2,10,64", "--items", "6"])
    tokenizer = Tokenizer.from_file(TOKENIZER)
    needles = Needles.read(tmp_path / "needles.jsonl", tokenizer, count=12, length=1024)
    assert needles.lines_behind == [2] * 4 + [10] * 4 + [64] * 4
    for row, is_answer in zip(needles.rows, needles.is_answer, strict=True):
        text = tokenizer.decode(row[: int(is_answer.nonzero().max()) + 1].tolist())
        name, answer = text.rsplit("Number of the ", 1)[1].split(":")
        assert f"The {name}:{answer}.\n" in text
        assert tokenizer.decode(row[is_answer].tolist()) == answer
    assert set(Needles.read(tmp_path / "needles.jsonl", tokenizer, count=12, length=500).lines_behind) == {2, 10}
