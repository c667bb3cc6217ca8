"""Where a step's time goes on its device: one mark at the end of each phase, read after the step is done."""

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol

import torch


class Marks(Protocol):
    """Times of one step's phases. Used again by a later step, after they were read."""

    def begin(self) -> None:
        """The first phase begins."""
        ...

    def mark(self, phase: str) -> None:
        """A phase has ended."""
        ...

    def spans_s(self) -> dict[str, float]:
        """Seconds of each phase, in order; empty when nothing was marked."""
        ...


class HostMarks:
    """For a device that is the host."""

    def __init__(self) -> None:
        self._times: list[tuple[str, float]] = []

    def begin(self) -> None:
        """Forget the last step."""
        self._times = [("", time.perf_counter())]

    def mark(self, phase: str) -> None:
        """Note the time."""
        self._times.append((phase, time.perf_counter()))

    def spans_s(self) -> dict[str, float]:
        """Differences."""
        times, self._times = self._times, []
        return {phase: end - start for (_, start), (phase, end) in pairwise(times)}


class CudaMarks:
    """Events on the current stream."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []
        self._phases: list[str] = []

    def begin(self) -> None:
        """Forget the last step."""
        self._phases = []
        self._record("")

    def mark(self, phase: str) -> None:
        """Record an event."""
        self._record(phase)

    def spans_s(self) -> dict[str, float]:
        """Differences; the step must be done."""
        phases, self._phases = self._phases, []
        pairs: Iterator[tuple[torch.cuda.Event, torch.cuda.Event]] = pairwise(self._events[: len(phases)])
        return {phase: start.elapsed_time(end) / 1e3 for phase, (start, end) in zip(phases[1:], pairs, strict=True)}

    def _record(self, phase: str) -> None:
        if len(self._events) == len(self._phases):
            self._events.append(torch.cuda.Event(enable_timing=True))
        self._events[len(self._phases)].record()
        self._phases.append(phase)


def new_marks(device: torch.device) -> Marks:
    """Marks for a device."""
    return CudaMarks() if device.type == "cuda" else HostMarks()
