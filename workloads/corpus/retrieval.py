"""Finding one line among many alike: each line gives some object a number, a question asks for one of them.

The distractors have the form of the needle; all objects of a text differ, while many share a colour or a noun. A line
is nine tokens, so a needle's depth is set by the number of lines behind it. The answer follows its colon at once, in a
line as in a question: what names the object then stands within the four tokens that a short convolution sees.
"""

import random
from dataclasses import dataclass

from workloads.corpus.sums import Split, is_held_out
from workloads.corpus.words import COLOURS, OBJECTS


@dataclass(frozen=True, slots=True)
class RetrievalItem:
    """A text that ends where the answer begins; `lines_behind` lines stand between needle and question."""

    prompt: str
    answer: str
    lines_behind: int


def retrieval_items(seed: str | int, lines_behind: int, count: int, *, lines_before: int = 4) -> list[RetrievalItem]:
    """`count` items with one question each and held-out numbers."""
    draw = random.Random(f"retrieval/held_out/{seed}/{lines_behind}")
    items = []
    for _ in range(count):
        facts = _facts(draw, lines_before + 1 + lines_behind, "held_out")
        needle = facts[lines_before]
        items.append(RetrievalItem(_text(facts) + _question(needle), str(needle[1]), lines_behind))
    return items


def retrieval_text(draw: random.Random, split: Split = "train") -> str:
    """For training: facts with questions about earlier ones between them, and some at the end; mostly few facts.

    A number that nothing foretells teaches nothing, an answer does: so there are about as many questions as facts, and
    a text that is cut short still has its share of both.
    """
    facts = _facts(draw, draw.randint(2, 8) if draw.random() < 0.5 else draw.randint(9, 80), split)
    parts: list[str] = []
    for number, fact in enumerate(facts, start=1):
        parts.append(_text([fact]))
        if draw.random() < 0.5:
            parts.append(_answered(draw.choice(facts[:number])))
    parts += [_answered(fact) for fact in draw.sample(facts, min(len(facts), draw.randint(3, 8)))]
    return "".join(parts)


Fact = tuple[str, int]


def _facts(draw: random.Random, count: int, split: Split) -> list[Fact]:
    every = [f"{colour} {thing}" for colour in COLOURS for thing in OBJECTS]
    return [(name, _number(draw, name, split)) for name in draw.sample(every, count)]


def _number(draw: random.Random, name: str, split: Split) -> int:
    """Three digits; which of them an object may have in training is a matter of the split."""
    while True:
        number = draw.randint(100, 999)
        if is_held_out(f"{name}={number}") == (split == "held_out"):
            return number


def _text(facts: list[Fact]) -> str:
    return "".join(f"The {name}:{number}.\n" for name, number in facts)


def _answered(fact: Fact) -> str:
    return f"{_question(fact)}{fact[1]}\n"


def _question(fact: Fact) -> str:
    return f"Number of the {fact[0]}:"
