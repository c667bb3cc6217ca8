"""Copying and counting: short exercises whose answers follow from the line before."""

import random

from workloads.corpus.words import COLOURS, NAMES, OBJECTS, PLACES, THINGS


def drill_text(draw: random.Random) -> str:
    """A few exercises of one kind."""
    exercise = draw.choice((_copy, _count, _count_up))
    return "".join(exercise(draw) for _ in range(draw.randint(2, 5)))


def _copy(draw: random.Random) -> str:
    words = [draw.choice(_TOKENS) for _ in range(draw.randint(2, 16))]
    return f"Copy: {' '.join(words)}\nAnswer: {' '.join(words)}\n"


def _count(draw: random.Random) -> str:
    thing, other = draw.sample(OBJECTS, 2)
    words = [thing] * draw.randint(1, 9) + [other] * draw.randint(0, 6)
    draw.shuffle(words)
    return f"Count {thing}: {' '.join(words)}\nAnswer: {words.count(thing)}\n"


def _count_up(draw: random.Random) -> str:
    first, step = draw.randint(0, 90), draw.choice((1, 1, 2, 5, 10))
    numbers = " ".join(str(first + step * i) for i in range(draw.randint(4, 12)))
    return f"Count from {first} by {step}:\nAnswer: {numbers}\n"


_TOKENS = [*COLOURS, *OBJECTS, *PLACES, *THINGS, *NAMES, *map(str, range(100))]
