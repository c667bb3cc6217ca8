"""Plain English sentences about nothing in particular."""

import random

from workloads.corpus.words import COLOURS, NAMES, OBJECTS, PLACES, THINGS

_VERBS = "bought sold carried counted found packed moved painted repaired borrowed".split()
_WHEN = ("in the morning", "after the rain", "before the sale", "on Monday", "last week", "at noon", "the next day")
_CLOSINGS = ("Nobody was there.", "It was late.", "The {object} was {colour}.", "{other} was glad.", "That was all.")


def english_text(draw: random.Random) -> str:
    """A paragraph."""
    return " ".join(_sentence(draw) for _ in range(draw.randint(2, 8))) + "\n"


def _sentence(draw: random.Random) -> str:
    name, other = draw.sample(NAMES, 2)
    words = {"other": other, "object": draw.choice(OBJECTS), "colour": draw.choice(COLOURS)}
    what = draw.choice(
        (f"the {draw.choice(COLOURS)} {draw.choice(OBJECTS)}", f"{draw.randint(2, 99)} {draw.choice(THINGS)}")
    )
    first = f"{name} {draw.choice(_VERBS)} {what} in the {draw.choice(PLACES)} {draw.choice(_WHEN)}."
    return f"{first} {draw.choice(_CLOSINGS).format(**words)}"
