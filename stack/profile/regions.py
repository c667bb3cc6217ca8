"""Times every call of a bound op, by kind of step. What is not inside any op is the time between ops.

The regions are the ops of `stack.kernels`, as the model was built with them; an op that calls another is charged
without it. On a GPU the marks are events of the running stream and are read at the end; on the CPU they are the clock.
Knows nothing of models and schedulers. Not for serving: a mark costs time, and captured graphs have none.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from stack.kernels.binding import BoundOp

OTHER = "between ops"


@dataclass(frozen=True, slots=True)
class Region:
    """One op of one kind of step: seconds and calls over all its steps."""

    kind: str
    op: str
    impl: str
    calls: int
    seconds: float


@dataclass(slots=True)
class _Span:
    kind: str
    op: str
    impl: str
    begin: Any
    end: Any
    parent: int | None


class Regions:
    """Collects spans while `recording` is entered; `kind` names the step that runs."""

    def __init__(self, device: torch.device) -> None:
        self.kind = ""
        self._is_cuda = device.type == "cuda"
        self._spans: list[_Span] = []
        self._open: list[int] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Wrap every op that is called or bound from now on; everything is as before afterwards."""
        call, function = BoundOp.__call__, BoundOp.function

        def timed(op: BoundOp, *args: Any, **kwargs: Any) -> Any:
            return self._run(op, lambda: call(op, *args, **kwargs))

        def timed_function(op: BoundOp, name: str) -> Callable[..., Any]:
            found = function(op, name)
            return lambda *args, **kwargs: self._run(op, lambda: found(*args, **kwargs))

        BoundOp.__call__ = timed  # type: ignore[method-assign, assignment]
        BoundOp.function = timed_function  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            BoundOp.__call__ = call  # type: ignore[method-assign]
            BoundOp.function = function  # type: ignore[method-assign]

    def forget(self) -> None:
        """Drop what was recorded, such as a warm-up."""
        self._spans.clear()

    def regions(self) -> list[Region]:
        """All regions, longest first; on a GPU it waits for the device."""
        if self._is_cuda:
            torch.cuda.synchronize()
        own = [self._seconds(span) for span in self._spans]
        for index, span in enumerate(self._spans):
            if span.parent is not None:
                own[span.parent] -= self._seconds(self._spans[index])
        total: dict[tuple[str, str, str], list[float]] = {}
        for span, seconds in zip(self._spans, own, strict=True):
            total.setdefault((span.kind, span.op, span.impl), []).append(seconds)
        found = [Region(*key, calls=len(all_s), seconds=sum(all_s)) for key, all_s in total.items()]
        return sorted(found, key=lambda region: -region.seconds)

    def _run(self, op: BoundOp, work: Callable[[], Any]) -> Any:
        span = _Span(self.kind, op.name, op.impl, self._mark(), None, self._open[-1] if self._open else None)
        self._open.append(len(self._spans))
        self._spans.append(span)
        try:
            return work()
        finally:
            self._open.pop()
            span.end = self._mark()

    def _mark(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, span: _Span) -> float:
        if self._is_cuda:
            return float(span.begin.elapsed_time(span.end)) / 1e3
        return float(span.end - span.begin)
