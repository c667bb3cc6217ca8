"""Held-out questions from a JSON-lines file in GSM8K's fields, and how many the target in training gets right."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from stack.training.generation import answer_in_turn
from stack.training.parameters import Tensors

MARK = "####"


@dataclass(frozen=True, slots=True)
class Questions:
    """Encoded prompts with their numbers; the first `shots` items are the worked examples before each."""

    prompts: list[list[int]]
    gold: list[str]
    tokenizer: Tokenizer

    @classmethod
    def read(cls, path: Path, tokenizer: Tokenizer, *, shots: int, count: int) -> "Questions":
        """The `count` items behind the first `shots`."""
        with path.open() as lines:
            items = [json.loads(line) for line in lines][: shots + count]
        asked = [f"Question: {item['question']}\nAnswer:" for item in items]
        prefix = "".join(f"{a} {item['answer']}\n\n" for a, item in zip(asked, items[:shots], strict=False))
        prompts = [tokenizer.encode(prefix + a, add_special_tokens=False).ids for a in asked[shots:]]
        return cls(prompts, [marked_number(item["answer"]) or "" for item in items[shots:]], tokenizer)

    def accuracy(self, tensors: Tensors, config: dict[str, Any], *, limit: int = 130) -> float:
        """Share of greedy answers whose number is right."""
        stop = self.tokenizer.encode("\n").ids * 2
        capacity = max(map(len, self.prompts)) + limit
        rows = answer_in_turn(tensors, config, [[p] for p in self.prompts], stop=stop, limit=limit, capacity=capacity)
        texts = [self.tokenizer.decode(row.tokens[slice(*row.answers[0])]) for row in rows]
        return sum(marked_number(t) == g for t, g in zip(texts, self.gold, strict=True)) / len(self.gold)


def marked_number(text: str) -> str | None:
    """What stands behind the mark, up to the end of its line; None without a mark."""
    _, mark, after = text.partition(MARK)
    return after.split("\n", 1)[0].strip() if mark else None
