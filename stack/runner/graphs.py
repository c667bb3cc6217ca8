"""Captured decode steps: one CUDA graph a batch size and phase, all in one memory pool. Empty where nothing is
captured.

A graph's inputs and outputs are the batch's static buffers, and what an earlier phase of the same step left in the
pool: phases are captured and replayed in one order. The largest size is captured first, so that the smaller ones reuse
what its phases dropped.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch


class DecodeGraphs:
    """Graphs by batch size and phase."""

    def __init__(self) -> None:
        self._graphs: dict[tuple[int, str], torch.cuda.CUDAGraph] = {}
        self._longest: dict[int, int] = {}
        self._pool: Any = None

    def holds(self, size: int, max_context: int) -> bool:
        """Whether a step of `size` was captured for contexts of this length."""
        return max_context <= self._longest.get(size, 0)

    def replay(self, size: int, phase: str) -> None:
        """Enqueue a captured phase."""
        self._graphs[size, phase].replay()

    def capture(self, size: int, max_context: int, phases: Mapping[str, Callable[[], None]]) -> None:
        """Run the phases of a step twice eagerly, then capture each, on the current stream."""
        for _ in range(2):
            for run in phases.values():
                run()
        stream = torch.cuda.current_stream()
        stream.synchronize()
        for phase, run in phases.items():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                run()
            self._pool = self._pool or graph.pool()
            self._graphs[size, phase] = graph
        self._longest[size] = max_context
