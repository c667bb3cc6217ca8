"""Text that the trained target tells: questions from the corpus with its own greedy answers, as rows of token ids.

The drafts learn from these rows, answers alone: that is what they will have to guess.

R rows, T tokens.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from stack.training.generation import Row, answer_in_turn
from stack.training.journal import Journal
from stack.training.parameters import Tensors
from stack.training.recipe import Recipe
from stack.training.tokenizer import END_ID

TOLD_FILE = "told.safetensors"
_AT_ONCE = 2048
_ANSWER_TOKENS = 160


@dataclass(frozen=True, slots=True)
class Told:
    """Token ids int64 [R, T], and which of them the target told (bool [R, T])."""

    tokens: Tensor
    is_told: Tensor


def tell(
    folder: Path,
    corpus: Path,
    tokenizer: Tokenizer,
    tensors: Tensors,
    config: dict[str, Any],
    recipe: Recipe,
    journal: Journal,
    *,
    seed: int,
) -> Told:
    """Read the told rows from `folder`, or let the target tell them first."""
    file = folder / TOLD_FILE
    if not file.is_file():
        questions = _questions(corpus, tokenizer, seed)
        lists = [[next(questions) for _ in range(recipe.told_questions)] for _ in range(recipe.told_rows)]
        rows: list[Row] = []
        for begin in range(0, len(lists), _AT_ONCE):
            rows += answer_in_turn(
                tensors,
                config,
                lists[begin : begin + _AT_ONCE],
                stop=tokenizer.encode("\n").ids * 2,
                limit=_ANSWER_TOKENS,
                capacity=recipe.told_tokens,
            )
            journal.write(stage="told", rows=len(rows))
        folder.mkdir(parents=True, exist_ok=True)
        save_file(_packed(rows, recipe.told_tokens), file)
    loaded = load_file(file)
    device = tensors["norm.weight"].device
    return Told(loaded["tokens"].long().to(device), loaded["is_told"].bool().to(device))


def _packed(rows: list[Row], length: int) -> dict[str, Tensor]:
    tokens = torch.full((len(rows), length), END_ID, dtype=torch.int16)
    is_told = torch.zeros(len(rows), length, dtype=torch.uint8)
    for i, row in enumerate(rows):
        ids = row.tokens[:length]
        tokens[i, : len(ids)] = torch.tensor(ids, dtype=torch.int16)
        for first, end in row.answers:
            is_told[i, first:end] = 1
    return {"tokens": tokens, "is_told": is_told}


def _questions(corpus: Path, tokenizer: Tokenizer, seed: int) -> Iterator[list[int]]:
    """Questions of the corpus's stories without their answers, in a drawn order, again from the start at the end."""
    texts = []
    for file in sorted(corpus.glob("*.jsonl")):
        with file.open() as lines:
            documents = (json.loads(line) for line in lines)
            texts += [d["text"] for d in documents if d["kind"] == "stories"]
        if len(texts) > 20_000:
            break
    asked = [part.split("Answer:")[0] + "Answer:" for text in texts for part in text.split("\n\n") if "Answer:" in part]
    random.Random(seed).shuffle(asked)
    while True:
        yield from (tokenizer.encode(text, add_special_tokens=False).ids for text in asked)
