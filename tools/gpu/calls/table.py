"""The table of calls: what one call to a GPU machine runs. Standard library alone: that machine may lack more."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

TABLE = Path(__file__).with_name("calls.txt")
KINDS = ("session", "python", "pytest")
MOST_LANES = 2
"""GPUs that `device` gives lanes to."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to run, and how long at most."""

    name: str
    limit_s: float
    kind: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """Steps in order. `testbed` is that of its sessions, `packages` what its steps alone need; a call that `shares`
    times nothing, so others of the kind may run on its GPU at the same time."""

    name: str
    testbed: str
    steps: tuple[Step, ...]
    packages: tuple[str, ...] = ()
    shares: bool = False


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
            if word == "calls":
                continue
            if word == "shares":
                calls[name] = replace(calls[name], shares=True)
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


def read_lists(table: Path = TABLE) -> dict[str, tuple[str, ...]]:
    """Every list of stages of a table, each as `lanes_of` reads it. Raises ValueError with the line that is wrong."""
    calls, lists = read_calls(table), dict[str, tuple[str, ...]]()
    for number, line in enumerate(table.read_text().splitlines(), start=1):
        words = line.split()
        if words[1:2] != ["calls"] or words[0].startswith("#"):
            continue
        name, _, *stages = words
        if name in calls or name in lists or not stages:
            raise ValueError(f"{table.name} line {number}: a list has a name of its own and at least one call")
        if unknown := [call for call in names_of(stages) if call not in calls]:
            raise ValueError(f"{table.name} line {number}: no call {unknown[0]}")
        lists[name] = tuple(stages)
    return lists


def names_of(stages: Iterable[str]) -> list[str]:
    """The calls of stages, in order."""
    return [name for stage in stages for lane in lanes_of(stage) for group in lane for name in group]


def lanes_of(stage: str) -> list[list[list[str]]]:
    """Lanes of a stage, joined by `+`, one for each GPU; in each its groups in order, joined by `,`; in each the calls
    that run at the same time, joined by `/`."""
    return [[group.split("/") for group in lane.split(",")] for lane in stage.split("+")]


def stages_of(words: Iterable[str], lists: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Stages with the names of lists replaced by what they list."""
    return [stage for word in words for stage in lists.get(word, (word,))]


def problem_of(stages: list[str], calls: Mapping[str, Call]) -> str:
    """What is wrong with a list of stages, or nothing."""
    names = names_of(stages)
    if unknown := sorted(set(names) - set(calls)):
        return f"no call {unknown[0]}; there are {', '.join(sorted(calls))} and the lists of {TABLE.name}"
    if len(set(names)) < len(names):
        return "a call stands twice in the list; each runs once"
    lanes = [lanes_of(stage) for stage in stages]
    if max(map(len, lanes)) > MOST_LANES:
        return f"a stage has at most {MOST_LANES} lanes at once"
    groups = [group for stage in lanes for lane in stage for group in lane if len(group) > 1]
    if timed := [name for group in groups for name in group if not calls[name].shares]:
        return f"{timed[0]} times something and must have its GPU alone; only calls marked `shares` are joined by /"
    return ""
