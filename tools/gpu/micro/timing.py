"""Times one call as a CUDA graph, inputs cold: between replays a write of 256 MiB clears the 60 MB of L2."""

from collections.abc import Callable
from typing import Any

import torch


def capture(function: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """The call as a graph, after a warm-up that compiles and loads everything."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def median_us(graph: torch.cuda.CUDAGraph, budget_s: float = 0.2, *, is_clean: bool = False) -> float:
    """Median time of a replay in microseconds, of 10 to 40 replays. After the write the L2 cache holds lines that have
    to go to memory while the call runs; with `is_clean` a read of as many other bytes sends them there before."""
    flush = torch.empty(64 * 2**20, dtype=torch.int32, device="cuda")
    other = torch.zeros_like(flush) if is_clean else None
    graph.replay()
    first = _timed(graph, flush, other, 2)
    count = max(10, min(40, int(budget_s * 1e6 / (first[-1] + 200))))
    times = _timed(graph, flush, other, count)
    return times[len(times) // 2]


def _timed(graph: torch.cuda.CUDAGraph, flush: torch.Tensor, other: torch.Tensor | None, count: int) -> list[float]:
    events = []
    for _ in range(count):
        flush.zero_()
        if other is not None:
            other.sum()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) * 1e3 for begin, end in events)
