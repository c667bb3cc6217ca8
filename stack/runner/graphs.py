"""Captured decode steps, one CUDA graph a batch size, all in one memory pool. Empty where nothing is captured.

A graph's inputs and outputs are the batch's static buffers; what it allocates while it is captured stays its own. The
largest size is captured first, so that the smaller ones reuse its memory.
"""

from collections.abc import Callable
from typing import Any

import torch


class DecodeGraphs:
    """Graphs by batch size."""

    def __init__(self) -> None:
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, int]] = {}
        self._pool: Any = None

    def replay(self, size: int, max_context: int) -> bool:
        """Enqueue the captured step of `size`; False where there is none for contexts of this length."""
        graph, longest = self._graphs.get(size, (None, 0))
        if graph is None or max_context > longest:
            return False
        graph.replay()
        return True

    def capture(self, size: int, max_context: int, step: Callable[[], None]) -> None:
        """Run `step` twice eagerly, then capture it, on the current stream."""
        for _ in range(2):
            step()
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=torch.cuda.current_stream()):
            step()
        self._pool = self._pool or graph.pool()
        self._graphs[size] = (graph, max_context)
