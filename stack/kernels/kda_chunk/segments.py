"""Where a prefill pass is cut: chunks for the kernels that prepare them, segments for those that carry the state. Not
an implementation.

S segments, R requests. Cached by the lengths, since every layer of a pass asks for the same.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CHUNK = 64
TARGET_SEGMENTS = 8
"""Segments of a pass that give 16 heads two blocks a multiprocessor (H200)."""
MIN_CHUNKS = 16
"""Shortest segment worth its summary."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a pass is cut, on the device. Rows of `segment_S4`: first row, end row, request, whether it is the
    request's last."""

    segment_S4: "Tensor"
    summarised: "Tensor"
    first_R1: "Tensor"
    cu_seqlens: "Tensor"
    chunk_indices: "Tensor"
    rows: int


@lru_cache(maxsize=16)
def plan(lens: tuple[int, ...], device: "torch.device") -> Plan:
    """Cut requests of these lengths."""
    import torch

    chunks = [-(-length // CHUNK) for length in lens]
    each = max(MIN_CHUNKS, -(-sum(chunks) // TARGET_SEGMENTS))
    segments: list[tuple[int, int, int, int]] = []
    summarised: list[int] = []
    indices: list[tuple[int, int]] = []
    first, cu, begin = [0], [0], 0
    for request, (length, count) in enumerate(zip(lens, chunks, strict=True)):
        parts = max(1, count // each)
        edges = [count * part // parts for part in range(parts + 1)]
        for part in range(parts):
            if part < parts - 1:
                summarised.append(len(segments))
            end = min(length, edges[part + 1] * CHUNK)
            segments.append((begin + edges[part] * CHUNK, begin + end, request, int(part == parts - 1)))
        first.append(len(segments))
        indices += [(request, chunk) for chunk in range(count)]
        begin += length
        cu.append(begin)

    def on_device(values: Any, dtype: "torch.dtype") -> "Tensor":
        return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

    int32, int64 = torch.int32, torch.int64
    return Plan(
        on_device(segments, int32), on_device(summarised or [0], int32)[: len(summarised)], on_device(first, int32),
        on_device(cu, int64), on_device(indices, int64), begin,
    )  # fmt: skip
