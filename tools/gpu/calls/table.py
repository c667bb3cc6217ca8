"""The table of calls: what one call to a GPU machine runs. Standard library alone: that machine may lack more."""

from dataclasses import dataclass, replace
from pathlib import Path

TABLE = Path(__file__).with_name("calls.txt")
KINDS = ("session", "python", "pytest")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to run, and how long at most."""

    name: str
    limit_s: float
    kind: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """Steps in order. `testbed` is that of its sessions, `packages` what its steps alone need."""

    name: str
    testbed: str
    steps: tuple[Step, ...]
    packages: tuple[str, ...] = ()


def read_calls(table: Path = TABLE) -> dict[str, Call]:
    """Every call of a table. Raises ValueError with the line that is wrong."""
    calls: dict[str, Call] = {}
    for number, line in enumerate(table.read_text().splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            name, word, *rest = words
            if word == "testbed":
                (testbed,) = rest
                calls[name] = Call(name, testbed, ())
                continue
            if word == "packages":
                calls[name] = replace(calls[name], packages=tuple(rest))
                continue
            call, (limit, kind, *arguments) = calls[name], rest
            if kind not in KINDS or any(step.name == word for step in call.steps):
                raise ValueError(f"a step is one of {', '.join(KINDS)} and has a name of its own")
            step = Step(word, float(limit), kind, tuple(arguments))
            calls[name] = replace(call, steps=(*call.steps, step))
        except (ValueError, KeyError) as error:
            raise ValueError(f"{table.name} line {number}: {error}") from None
    return calls
