"""Grade-school stories in the form of GSM8K: a question, worked steps with <<marked sums>>, the answer behind "####".

A story opens with a count, one to three events change it, each by one sum, and a question asks what is left. Its
*pattern* is the order of its sentence templates. Training shows neither the held-out patterns nor the held-out sums;
every held-out story has a held-out pattern and at least one held-out sum.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from workloads.corpus.sums import Operation, Split, Sum, draw_sum, is_held_out
from workloads.corpus.words import NAMES, PLACES, THINGS, singular


@dataclass(frozen=True, slots=True)
class Story:
    """A question with its worked answer; `pattern` names its sentences, `sums` are those that solve it, in order."""

    question: str
    answer: str
    pattern: str
    sums: tuple[Sum, ...]

    @property
    def is_held_out(self) -> bool:
        """Whether pattern and sums are both held out."""
        return is_held_out(self.pattern) and any(one.is_held_out for one in self.sums)

    @property
    def may_train(self) -> bool:
        """Whether neither is."""
        return not is_held_out(self.pattern) and not any(one.is_held_out for one in self.sums)


@dataclass(frozen=True, slots=True)
class _Event:
    operation: Operation
    text: str
    work: str


_OPENINGS = (
    "{name} has {n} {things}.",
    "There are {n} {things} in the {place}.",
    "{name} finds {n} {things} in the {place}.",
    "{name} bought {n} {things}.",
)
_EVENTS = (
    _Event("+", "Then {other} brings {k} more.", "After that there are"),
    _Event("+", "In the morning {k} more are found.", "In the morning there are"),
    _Event("+", "{other} adds {k} {things}.", "With those there are"),
    _Event("-", "Then {k} of them are sold.", "After the sale there are"),
    _Event("-", "{other} takes {k} of them.", "That leaves"),
    _Event("-", "The next day {k} {things} are lost.", "The next day there are"),
    _Event("*", "The number grows to {k} times as many.", "Then there are"),
    _Event("*", "A week later there are {k} times as many.", "A week later there are"),
    _Event("/", "They are shared by {k} children and one share is kept.", "One share is"),
    _Event("/", "Only one of every {k} {things} is kept.", "What is kept is"),
)
_QUESTIONS = (
    "How many {things} are there now?",
    "How many {things} are left?",
    "What is the number of {things} at the end?",
)


def stories(seed: str | int, split: Split) -> Iterator[Story]:
    """Stories of that split without end, always the same ones for a seed."""
    draw = random.Random(f"stories/{split}/{seed}")
    fits: Callable[[Story], bool] = _is_held_out if split == "held_out" else _may_train
    while True:
        story = _story(draw)
        if story is not None and fits(story):
            yield story


def _is_held_out(story: Story) -> bool:
    return story.is_held_out


def _may_train(story: Story) -> bool:
    return story.may_train


def _story(draw: random.Random) -> Story | None:
    """A story, or None where its numbers do not come out whole."""
    count = draw.choices((1, 2, 3), weights=(2, 5, 3))[0]
    opening, events, asks = draw.randrange(len(_OPENINGS)), draw.sample(range(len(_EVENTS)), count), draw.randrange(3)
    name, other = draw.sample(NAMES, 2)
    things, place = draw.choice(THINGS), draw.choice(PLACES)
    start = value = draw.randint(4, 60)
    sentences, steps, sums = [_OPENINGS[opening]], [], []
    for number in events:
        event = _EVENTS[number]
        found = draw_sum(draw, event.operation, value)
        if found is None:
            return None
        sums.append(found)
        value = found.result
        sentences.append(event.text.replace("{k}", str(found.second)))
        steps.append(f"{event.work} {_worked(found)} {things if value != 1 else singular(things)}.")
    words = {"name": name, "other": other, "things": things, "place": place, "n": start}
    question = " ".join([*sentences, _QUESTIONS[asks]]).format(**words)
    pattern = f"{opening}/{'.'.join(map(str, events))}/{asks}"
    return Story(question, "\n".join([*steps, f"#### {value}"]), pattern, tuple(sums))


def _worked(one: Sum) -> str:
    plain = f"{one.first}{one.operation}{one.second}"
    return f"{one.first} {one.operation} {one.second} = <<{plain}={one.result}>>{one.result}"
