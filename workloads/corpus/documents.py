"""The mixture that the checkpoint is trained on: one document a line, each of one kind."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from workloads.corpus.drills import drill_text
from workloads.corpus.english import english_text
from workloads.corpus.retrieval import retrieval_text
from workloads.corpus.stories import Story, stories
from workloads.corpus.sums import sum_lines

KINDS = {"stories": 50, "sums": 13, "retrieval": 23, "drills": 7, "english": 4, "chat": 3}
"""Kind -> its weight among documents."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text of one kind. Chat documents hold the chat template's marks."""

    kind: str
    text: str


def documents(seed: str | int) -> Iterator[Document]:
    """Training documents without end, always the same ones for a seed."""
    draw, told = random.Random(f"documents/{seed}"), stories(seed, "train")
    while True:
        kind = draw.choices(tuple(KINDS), weights=tuple(KINDS.values()))[0]
        yield Document(kind, _text(kind, draw, told))


def story_prompt(story: Story) -> str:
    """The question, up to where the answer begins; the form of the accuracy workloads."""
    return f"Question: {story.question}\nAnswer:"


def _text(kind: str, draw: random.Random, told: Iterator[Story]) -> str:
    match kind:
        case "stories":
            shown = islice(told, draw.randint(1, 6))
            return "".join(f"{story_prompt(story)} {story.answer}\n\n" for story in shown)
        case "sums":
            return sum_lines(draw, draw.randint(6, 24))
        case "retrieval":
            return retrieval_text(draw)
        case "drills":
            return drill_text(draw)
        case "english":
            return english_text(draw)
    return "".join(f"<|user|>{s.question}<|assistant|>{s.answer}" for s in islice(told, draw.randint(1, 3)))
