"""What a source produces and a client sends: prompts, in conversations, with their exact lengths.

A conversation is the unit that one slot works through: its turns follow each other. Most have one turn.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np


@dataclasses.dataclass(slots=True, kw_only=True)
class Prompt:
    """One request to be. Either `token_ids` (int32) or `text` is given."""

    output_tokens: int
    token_ids: np.ndarray | None = None
    text: str | None = None
    input_tokens: int | None = None
    """Length in tokens by construction; None when only the server can count."""
    shared_tokens: int | None = None
    """Leading tokens that the other prompts of the group have too."""
    group: int | None = None
    quotes_answer: bool = False
    """The client puts the answers of earlier turns before this text."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Conversation:
    """Turns that follow each other, and when the load plan wants the first one sent (seconds from t0)."""

    turns: Sequence[Prompt]
    intended_s: float | None = None


class Source(Protocol):
    """A kind of traffic."""

    def conversations(self, seed: int, count: int, *, first: int = 0) -> list[Conversation]:
        """Conversations `first` to `first + count` of the endless sequence that `seed` names."""
        ...

    def prefixes(self, seed: int) -> list[Prompt]:
        """One prompt for each prefix to prime; empty when nothing is shared."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """A question whose answer is known. `answer` is a worked solution; the number that it ends with is what counts."""

    index: int
    """Its place in what it was taken from; two runs are paired by it."""
    question: str
    answer: str


@runtime_checkable
class ItemSource(Source, Protocol):
    """A kind of traffic that can be scored: conversation i asks `items[i % len(items)]`, and nothing else."""

    items: Sequence[Item]
