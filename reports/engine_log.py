"""What an engine's step log says of one session: limits, memory in use, and where a verify cycle's time goes.

A log is JSON lines, those of all instances together; each line names its instance and carries `t_s`, monotonic or wall
clock. Only steps inside the measured windows count for medians. Knows no figures and no claims.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from reports.json_files import json_lines

Line = dict[str, Any]

PHASES = ("draft", "verify", "accept", "commit")
_UNIX_FROM_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """One instance over a session. Limits and sizes are None where the log does not say them."""

    name: str
    running_limit: int | None
    most_running: int
    pages_total: int
    page_bytes: int | None
    pages_used_p50: float
    slots_total: int
    slot_bytes: int | None
    slots_used_p50: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """Medians over verify steps, in milliseconds. `cycle_ms` is the time from one step's end to the next one's."""

    phases_ms: dict[str, float]
    cycle_ms: float
    num_steps: int

    @property
    def other_ms(self) -> float:
        """What no phase accounts for."""
        return max(self.cycle_ms - sum(self.phases_ms.values()), 0.0)


def step_lines(folder: Path) -> list[Line]:
    """All whole lines of a session's log, oldest first; empty without a log. A torn line is left out."""
    file = folder / "engine.jsonl"
    return list(_read(file, file.stat().st_mtime_ns)) if file.exists() else []


def in_windows(lines: Sequence[Line], client: Mapping[str, Any]) -> list[Line]:
    """The lines inside the measured passes; all of them where the client's facts have no passes."""
    spans = [
        (one["t0_monotonic_s"], one["t0_unix_s"], one["duration_s"])
        for one in client.get("passes", ())
        if one.get("duration_s") is not None and one.get("t0_monotonic_s") is not None
    ]
    if not spans:
        return list(lines)
    return [line for line in lines if any(_is_inside(line["t_s"], *span) for span in spans)]


def instance_views(lines: Sequence[Line]) -> list[InstanceView]:
    """Each instance of a log, by name."""
    names = sorted({str(line.get("instance", "engine")) for line in lines})
    return [_view(name, [line for line in lines if line.get("instance", "engine") == name]) for name in names]


def verify_cycle(lines: Sequence[Line]) -> Cycle | None:
    """The phases of verify steps; None where nothing was speculated or too few steps are left to say."""
    steps = [line for line in lines if line.get("kind") == "verify" and "verify_s" in line and line.get("rows")]
    gaps = [
        1000 * (after["t_s"] - before["t_s"])
        for before, after in pairwise(steps)
        if after["step"] == before["step"] + 1 and after.get("instance") == before.get("instance")
    ]
    if len(gaps) < 5:
        return None
    phases = {phase: median(1000 * step.get(f"{phase}_s", 0.0) for step in steps) for phase in PHASES}
    return Cycle(phases_ms=phases, cycle_ms=median(gaps), num_steps=len(steps))


def idle_share(lines: Sequence[Line], client: Mapping[str, Any], names: Collection[str]) -> float | None:
    """Share of the middle three fifths of the passes in which no step ran on a device, over these instances' devices.

    None without passes, or where the log does not say how long steps took there.
    """
    busy_s = whole_s = 0.0
    for one in client.get("passes", ()):
        if one.get("duration_s") and one.get("t0_monotonic_s") is not None:
            length_s = 0.6 * one["duration_s"]
            begin_s = (one["t0_monotonic_s"] + 0.2 * one["duration_s"], one["t0_unix_s"] + 0.2 * one["duration_s"])
            whole_s += length_s * len(names)
            busy_s += sum(
                line["device_s"]
                for line in lines
                if "device_s" in line and line.get("instance") in names and _is_inside(line["t_s"], *begin_s, length_s)
            )
    return max(0.0, 1 - busy_s / whole_s) if busy_s and whole_s else None


@lru_cache(maxsize=64)
def _read(file: Path, _changed_ns: int) -> tuple[Line, ...]:
    return tuple(line for line in json_lines(file) if "t_s" in line)


def _is_inside(t_s: float, monotonic_s: float, unix_s: float, duration_s: float) -> bool:
    start_s = unix_s if t_s > _UNIX_FROM_S else monotonic_s
    return start_s <= t_s <= start_s + duration_s


def _view(name: str, lines: list[Line]) -> InstanceView:
    last = lines[-1]
    return InstanceView(
        name=name,
        running_limit=last.get("running_limit"),
        most_running=max(int(line.get("running", 0)) for line in lines),
        pages_total=int(last.get("pages_total", 0)),
        page_bytes=last.get("page_bytes"),
        pages_used_p50=median(float(line.get("pages_used", 0)) for line in lines),
        slots_total=int(last.get("slots_total", 0)),
        slot_bytes=last.get("slot_bytes"),
        slots_used_p50=median(float(line.get("slots_used", 0)) for line in lines),
    )
