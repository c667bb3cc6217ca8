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
    """Where a pass is cut, on the device. Rows of `segment_S5`: first row, end row, request, whether it is the
    request's last, its first chunk."""

    segment_S5: "Tensor"
    summarised: "Tensor"
    first_R1: "Tensor"
    cu_seqlens: "Tensor"
    chunk_indices: "Tensor"
    """Request and number within it of each chunk."""
    chunk_ends: "Tensor"
    """Last row of each chunk."""
    rows: int
    requests: int


def begin_pass(v_THD: "Tensor", extend_lens: tuple[int, ...]) -> "tuple[Plan, Tensor]":
    """The cut of a pass and its output [T, H, V]: zeros behind the last real row, the rest is to be written."""
    import torch

    cut = plan(tuple(length for length in extend_lens if length), v_THD.device)
    o_THD = torch.empty_like(v_THD, memory_format=torch.contiguous_format)
    o_THD[cut.rows :].zero_()
    return cut, o_THD


def entering_states(
    state_SHKV: "Tensor", slot_R: "Tensor", has_state_R: "Tensor", cut: Plan
) -> "tuple[Tensor, Tensor]":
    """Slots of the requests that have rows, and their states in FP32, zeros where a request starts."""
    import torch

    slots = slot_R[: cut.requests].long()
    resumes = has_state_R[: cut.requests, None, None, None].bool()
    return slots, torch.where(resumes, state_SHKV[slots].float(), 0.0)


@lru_cache(maxsize=16)
def plan(lens: tuple[int, ...], device: "torch.device") -> Plan:
    """Cut requests of these lengths."""
    import torch

    chunks = [-(-length // CHUNK) for length in lens]
    each = max(MIN_CHUNKS, -(-sum(chunks) // TARGET_SEGMENTS))
    segments: list[tuple[int, int, int, int, int]] = []
    summarised: list[int] = []
    indices: list[tuple[int, int]] = []
    ends: list[int] = []
    first, cu, begin = [0], [0], 0
    for request, (length, count) in enumerate(zip(lens, chunks, strict=True)):
        parts = max(1, count // each)
        edges = [count * part // parts for part in range(parts + 1)]
        for part in range(parts):
            if part < parts - 1:
                summarised.append(len(segments))
            end = min(length, edges[part + 1] * CHUNK)
            is_last = int(part == parts - 1)
            segments.append((begin + edges[part] * CHUNK, begin + end, request, is_last, len(indices) + edges[part]))
        first.append(len(segments))
        indices += [(request, chunk) for chunk in range(count)]
        ends += [begin + min(length, (chunk + 1) * CHUNK) - 1 for chunk in range(count)]
        begin += length
        cu.append(begin)

    def on_device(values: Any, dtype: "torch.dtype") -> "Tensor":
        pinned = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
        return pinned.to(device, non_blocking=True)  # from pageable memory the host would wait for the step before

    int32, int64 = torch.int32, torch.int64
    return Plan(
        on_device(segments, int32), on_device(summarised or [0], int32)[: len(summarised)], on_device(first, int32),
        on_device(cu, int64), on_device(indices, int64), on_device(ends, int64), begin, len(lens),
    )  # fmt: skip
