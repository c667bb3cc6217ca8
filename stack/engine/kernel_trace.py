"""What the device ran in each of a few steps: one trace a step, and how much of the step it explains.

A trace begins while the device has nothing to do and ends after the step, so all it holds is that step's: nothing of
admission, of a neighbour or of another kind of step. Steps must not overlap (`scheduler.overlap` off). The first step
of each kind only warms up, for it may compile. A step's own device time comes from marks in its stream, not from the
trace: what the trace covers of it is the check. The rest is time in which the device waited for the host, or lost
events. A GPU is given something to spin on before each step, so that the host enqueues the step meanwhile and need not
be waited for. On a GPU the events are its kernels and copies, on the CPU PyTorch's operators.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from stack.core.plan import StepPlan

HEAD_START_CYCLES = 400_000_000
"""About a fifth of a second, in which a host enqueues an eager step of all layers."""
_SPIN = "spin_kernel"
LEAST_COVERED = 0.9
"""Below this share of the steps' own device time a report says that it does not explain the step."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One kernel, copy or operator of one step, in microseconds of the trace; `self_us` leaves out what it calls."""

    name: str
    begin_us: float
    end_us: float
    self_us: float


@dataclass(slots=True)
class Kind:
    """All traced steps of one kind."""

    device_ms: list[float] = field(default_factory=list)
    captured_ms: list[float] = field(default_factory=list)
    ms: dict[str, float] = field(default_factory=dict)
    count: Counter[str] = field(default_factory=Counter)

    def add(self, device_s: float, ran: Iterable[Ran]) -> None:
        """One more step."""
        found = list(ran)
        self.device_ms.append(1e3 * device_s)
        self.captured_ms.append(covered_us(found) / 1e3)
        for event in found:
            self.ms[event.name] = self.ms.get(event.name, 0.0) + event.self_us / 1e3
            self.count[event.name] += 1

    def report(self) -> dict[str, Any]:
        """Means of one step. `captured_ms` is the time in which anything ran, so kernels side by side count once."""
        steps = len(self.device_ms)
        device_ms, captured_ms = sum(self.device_ms) / steps, sum(self.captured_ms) / steps
        return {
            "steps": steps,
            "device_ms": device_ms,
            "captured_ms": captured_ms,
            "covered": captured_ms / device_ms if device_ms else None,
            "launches": self.count.total() / steps,
            "kernels": {
                name: {"ms": self.ms[name] / steps, "launches": self.count[name] / steps}
                for name in sorted(self.ms, key=lambda name: -self.ms[name])
            },
        }


class StepTraces:
    """Traces the steps of one runner, from `watch` on, until `num_steps` were traced."""

    def __init__(self, device: torch.device, num_steps: int) -> None:
        self._device = device
        self._left = num_steps
        self._warm: set[str] = set()
        self._kinds: dict[str, Kind] = {}

    @property
    def is_done(self) -> bool:
        """Whether enough steps were traced."""
        return self._left <= 0

    def watch(self, runner: Any) -> None:
        """Trace each step of a `stack.runner.Runner`, from launch to collect."""
        launch, collect = runner.launch, runner.collect
        device = self._device
        under_way: list[profile] = []

        def traced_launch(plan: StepPlan) -> Any:
            if plan.kind in self._warm and not self.is_done:
                assert not under_way, "steps overlap"
                under_way.append(self._begin())
                give_head_start(runner, device)
            self._warm.add(plan.kind)
            return launch(plan)

        def traced_collect(handle: Any) -> Any:
            result = collect(handle)
            if under_way:
                self._end(under_way.pop(), handle.plan.kind, result.device_s)
            return result

        runner.launch, runner.collect = traced_launch, traced_collect

    def report(self) -> dict[str, Any]:
        """By kind of step."""
        return {kind: found.report() for kind, found in self._kinds.items()}

    def _begin(self) -> profile:
        self._synchronize()
        is_cuda = self._device.type == "cuda"
        trace = profile(
            activities=[ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU],
            acc_events=True,
            experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=not is_cuda),
        )
        trace.start()
        return trace

    def _end(self, trace: profile, kind: str, device_s: float) -> None:
        self._synchronize()
        trace.stop()
        wanted = DeviceType.CUDA if self._device.type == "cuda" else DeviceType.CPU
        ran = [_ran(one) for one in trace.events() or () if one.device_type == wanted and _SPIN not in one.name]
        self._kinds.setdefault(kind, Kind()).add(device_s, ran)
        self._left -= 1

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def give_head_start(runner: Any, device: torch.device) -> None:
    """Have a GPU spin before the next step, while the host enqueues that step; a CPU's steps wait for nobody."""
    if device.type == "cuda":
        runner.submit(lambda: torch.cuda._sleep(HEAD_START_CYCLES))


def covered_us(ran: Iterable[Ran]) -> float:
    """Microseconds in which at least one of them ran."""
    total_us, until_us = 0.0, float("-inf")
    for event in sorted(ran, key=lambda one: one.begin_us):
        total_us += max(0.0, event.end_us - max(event.begin_us, until_us))
        until_us = max(until_us, event.end_us)
    return total_us


def doubts(report: dict[str, Any]) -> list[str]:
    """A sentence for every kind of step that its trace does not explain."""
    if not report:
        return ["no step was traced: the first of each kind only warms up, so serve more requests"]
    return [
        f"{kind}: the trace covers {found['captured_ms']:.1f} of {found['device_ms']:.1f} ms a step; in the rest the "
        "device waited for the host, or events were lost, so do not read the kernels' sum as the step's time"
        for kind, found in report.items()
        if (found["covered"] or 0.0) < LEAST_COVERED
    ]


def _ran(event: Any) -> Ran:
    span = event.time_range
    is_device = event.device_type == DeviceType.CUDA
    return Ran(event.name, span.start, span.end, span.end - span.start if is_device else event.self_cpu_time_total)
