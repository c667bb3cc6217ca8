"""Greedy text from the target while it trains: answers to questions, many rows in step.

A row takes questions in turn: its tokens are forced, then the target answers until an empty line or a limit, then comes
the next one. So one row looks like a prompt with worked examples, all of them the target's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stack.training.parameters import Tensors
from stack.training.stepping import Stepper
from stack.training.target import logits_of


@dataclass(slots=True)
class Row:
    """One growing sequence. `answers` holds (first, end) of each answer in `tokens`."""

    waiting: list[list[int]]
    tokens: list[int] = field(default_factory=list)
    forced: int = 0
    answers: list[tuple[int, int]] = field(default_factory=list)
    is_done: bool = False

    def advance(self, guess: int | None, stop: Sequence[int], limit: int) -> None:
        """Take the next token: a forced one, the guess, or the first of the next question."""
        if len(self.tokens) < self.forced or self.is_done:
            return
        if guess is not None and self.tokens:
            self.tokens.append(guess)
            first = self.answers[-1][0]
            self.answers[-1] = (first, len(self.tokens))
            if tuple(self.tokens[-len(stop) :]) != tuple(stop) and len(self.tokens) - first < limit:
                return
        if not self.waiting:
            self.is_done = True
            return
        self.tokens += self.waiting.pop(0)
        self.forced = len(self.tokens)
        self.answers.append((self.forced, self.forced))


@torch.no_grad()
def answer_in_turn(
    tensors: Tensors,
    config: dict[str, Any],
    questions: Sequence[Sequence[list[int]]],
    *,
    stop: Sequence[int],
    limit: int,
    capacity: int,
) -> list[Row]:
    """Let the target answer each row's questions (token ids) in turn, `limit` tokens an answer, `capacity` a row."""
    rows = [Row([list(question) for question in mine]) for mine in questions]
    stepper = Stepper(tensors, config, len(rows), capacity)
    device = tensors["norm.weight"].device
    for row in rows:
        row.advance(None, stop, limit)
    guesses: list[int] = []
    for position in range(capacity):
        for i, row in enumerate(rows):
            if position >= len(row.tokens):
                row.advance(guesses[i], stop, limit)
        if all(row.is_done for row in rows):
            break
        fed = [row.tokens[position] if position < len(row.tokens) else 0 for row in rows]
        hidden = stepper.step(torch.tensor(fed, device=device))
        guesses = _greedy(hidden, tensors)
    return rows


def _greedy(hidden: Tensor, tensors: Tensors) -> list[int]:
    best: list[int] = logits_of(hidden, tensors).argmax(-1).tolist()
    return best
