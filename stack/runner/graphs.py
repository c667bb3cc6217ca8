"""Captured decode steps: one CUDA graph a batch size and phase, all in one memory pool. Empty where nothing is
captured.

A graph's inputs and outputs are the batch's static buffers, and what an earlier phase of the same step left in the
pool: phases are captured and replayed in one order. The largest size is captured first, so that the smaller ones reuse
what its phases dropped. `torch.cuda.graph` would wait for the device and hand its cached memory back around each of
the four phases of each size; once, before the first, is enough.
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
        """Run the phases of a step eagerly, so that nothing compiles in a capture, then capture each, on the current
        stream."""
        for run in phases.values():
            run()
        torch.cuda.current_stream().synchronize()
        if self._pool is None:
            torch.cuda.empty_cache()
            self._pool = torch.cuda.graph_pool_handle()
        for phase, run in phases.items():
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=self._pool)
            try:
                run()
            finally:
                graph.capture_end()
            self._graphs[size, phase] = graph
        self._longest[size] = max_context
