"""Held-out needles while the target trains: how many it would find, by the lines between needle and question.

One forward over texts with their answers tells what greedy decoding would answer: it gives an answer's tokens exactly
when each is the likeliest behind those before it.

R rows, T tokens.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from stack.training.parameters import Tensors
from stack.training.target import logits_of, target_forward
from stack.training.tokenizer import PAD_ID


@dataclass(frozen=True, slots=True)
class Needles:
    """Texts that end in their answers, padded behind."""

    rows: Tensor
    """int64 [R, T]."""
    is_answer: Tensor
    """bool [R, T]: the tokens of each row's answer."""
    lines_behind: list[int]

    @classmethod
    def read(cls, path: Path, tokenizer: Tokenizer, *, count: int, length: int) -> "Needles":
        """At most `count` items of a JSON-lines file, as many of each depth; none that is longer than `length`."""
        with path.open() as lines:
            items = [json.loads(line) for line in lines]
        depths = sorted({item["lines_behind"] for item in items})
        each = count // len(depths)
        kept = [i for depth in depths for i in [i for i in items if i["lines_behind"] == depth][:each]]
        encoded = [
            [tokenizer.encode(i[part], add_special_tokens=False).ids for part in ("prompt", "answer")] for i in kept
        ]
        rows = torch.full((len(kept), length), PAD_ID)
        is_answer = torch.zeros(len(kept), length, dtype=torch.bool)
        fits = []
        for row, (prompt, answer) in enumerate(encoded):
            end = len(prompt) + len(answer)
            if end <= length:
                rows[row, :end] = torch.tensor(prompt + answer)
                is_answer[row, len(prompt) : end] = True
                fits.append(row)
        return cls(rows[fits], is_answer[fits], [kept[row]["lines_behind"] for row in fits])

    def found(self, tensors: Tensors, config: dict[str, Any], *, is_sparse: bool) -> dict[str, float]:
        """Lines behind the needle -> share of its items found. Gradients stay on: what is compiled for steps serves."""
        device = tensors["norm.weight"].device
        rows = self.rows.to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            passed = target_forward(rows[:, :-1], tensors, config, is_sparse=is_sparse)
            told = logits_of(passed.hidden, tensors).argmax(-1)
        is_right = ((told == rows[:, 1:]) | ~self.is_answer[:, 1:].to(device)).all(-1).tolist()
        return {
            str(depth): sum(right for right, d in zip(is_right, self.lines_behind, strict=True) if d == depth)
            / self.lines_behind.count(depth)
            for depth in sorted(set(self.lines_behind))
        }
