"""Sums of two small numbers, an eighth of which is held out: those never occur in training text, worked or bare."""

import random
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

Split = Literal["train", "held_out"]
Operation = Literal["+", "-", "*", "/"]

MOST = 200
"""No operand and no result is above it."""
_HELD_OUT = 8
"""One sum in so many is held out."""


@dataclass(frozen=True, slots=True)
class Sum:
    """`first operation second`, with a whole result between 0 and `MOST`."""

    first: int
    operation: Operation
    second: int

    @property
    def result(self) -> int:
        """What it comes to."""
        match self.operation:
            case "+":
                return self.first + self.second
            case "-":
                return self.first - self.second
            case "*":
                return self.first * self.second
            case "/":
                return self.first // self.second

    @property
    def is_held_out(self) -> bool:
        """Whether training must never show it. Numbers below ten are too few to spare any."""
        if self.operation in "+-" and min(self.first, self.second) < 10:
            return False
        return is_held_out(f"{self.first}{self.operation}{self.second}")


def is_held_out(name: str) -> bool:
    """Whether what has this name is one of the held-out eighth."""
    return crc32(name.encode()) % _HELD_OUT == 0


def draw_sum(draw: random.Random, operation: Operation, first: int | None = None) -> Sum | None:
    """A sum of that operation, with `first` as its first number where given; None where there is none."""
    if operation == "+":
        first = draw.randint(2, 99) if first is None else first
        return Sum(first, "+", draw.randint(2, min(60, MOST - first))) if first <= MOST - 2 else None
    if operation == "-":
        first = draw.randint(4, 150) if first is None else first
        return Sum(first, "-", draw.randint(1, min(60, first - 1))) if first >= 2 else None
    if operation == "*":
        first = draw.randint(2, 40) if first is None else first
        most = min(9, MOST // max(first, 1))
        return Sum(first, "*", draw.randint(2, most)) if most >= 2 and first >= 2 else None
    second = draw.randint(2, 9)
    if first is None:
        first = second * draw.randint(2, 20)
    fitting = [n for n in range(2, 10) if first % n == 0 and first > n]
    return Sum(first, "/", draw.choice(fitting)) if fitting else None


def sum_lines(draw: random.Random, count: int) -> str:
    """`count` lines of sums that training may see."""
    lines: list[str] = []
    while len(lines) < count:
        found = draw_sum(draw, draw.choice(("+", "-", "*", "/")))
        if found is not None and not found.is_held_out:
            lines.append(f"{found.first} {found.operation} {found.second} = {found.result}")
    return "\n".join(lines) + "\n"
