"""The serial part of KDA prefill, cut into segments that run side by side. Not an implementation of its own.

The rule is linear in the state: a segment maps it to `A S + B`. Every segment but a request's last is summarised as
(A, B), the summaries are chained into the state at each segment's entry, and all segments run at once, outputs and
states together, the state in FP32 registers. No intermediate state goes to memory.

T rows, R requests, S segments, H heads, K = V = 128, C = 64 rows of a chunk.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.kda_chunk.segments import CHUNK, Plan

SUMMARY_COLUMNS, SUMMARY_WARPS, SUMMARY_STAGES = 64, 4, 2
SCAN_COLUMNS, SCAN_WARPS, SCAN_STAGES = 64, 4, 3
"""Tuned on one H200 with Triton 3.6, 32,768 tokens of 16 heads."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a chunk contributes whatever the state is; G is the running sum of log2 decays inside the chunk."""

    w_THD: Tensor
    u_THD: Tensor
    qg_THD: Tensor
    """q 2^G."""
    kg_THD: Tensor
    """k 2^(G_end - G)."""
    scores_THC: Tensor
    """q_t . k_s 2^(G_t - G_s) for s <= t; entries above the diagonal are not read."""
    ends_NHD: Tensor
    """G of each chunk's last row, FP32."""


@triton.jit
def _summaries(
    w, u, kg, ends, out, segments, summarised, H: tl.constexpr, K: tl.constexpr, C: tl.constexpr, N: tl.constexpr
):
    """Columns of [B | A] for one segment and head."""
    at = tl.program_id(0)
    head, column = tl.program_id(1), tl.program_id(2) * N
    segment = tl.load(summarised + at)
    begin, end = tl.load(segments + segment * 5).to(tl.int64), tl.load(segments + segment * 5 + 1).to(tl.int64)
    chunk = tl.load(segments + segment * 5 + 4).to(tl.int64)
    k, n, c = tl.arange(0, K), tl.arange(0, N), tl.arange(0, C)
    is_b = column < K
    state = tl.where((k[:, None] == (column - K + n)[None, :]) & (column >= K), 1.0, 0.0)
    for row0 in range(begin, end, C):
        row = row0 + c
        inside = row < end
        wide = (row * H + head)[:, None] * K
        w_tile = tl.load(w + wide + k[None, :], mask=inside[:, None], other=0.0)
        k_tile = tl.load(kg + wide + k[None, :], mask=inside[:, None], other=0.0)
        v_tile = tl.load(u + wide + (column + n)[None, :], mask=inside[:, None] & is_b, other=0.0).to(tl.float32)
        decay = tl.exp2(tl.load(ends + (chunk * H + head) * K + k))
        chunk += 1
        fresh = v_tile - tl.dot(w_tile, state.to(w_tile.dtype))
        state = tl.dot(tl.trans(k_tile), fresh.to(k_tile.dtype), state * decay[:, None])
    to = out + (at.to(tl.int64) * H + head) * K * 2 * K + k[:, None] * 2 * K + (column + n)[None, :]
    tl.store(to, state)


@triton.jit
def _entries(
    summary, entry, first, state, slot, has_state, state_slot, state_head,
    H: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The state at the entry of each segment of one request, for one head and a block of columns."""
    request, head, column = tl.program_id(0), tl.program_id(1), tl.program_id(2) * N
    k, n = tl.arange(0, K), tl.arange(0, N)
    own_slot = tl.load(slot + request).to(tl.int64)
    resumes = tl.load(has_state + request) != 0
    at = state + own_slot * state_slot + head * state_head + k[:, None] * K + (column + n)[None, :]
    current = tl.load(at, mask=(k[:, None] >= 0) & resumes, other=0.0).to(tl.float32)
    begin, end = tl.load(first + request), tl.load(first + request + 1)
    source = begin - request  # each earlier request has one segment without a summary
    for segment in range(begin, end):
        to = entry + (tl.cast(segment, tl.int64) * H + head) * K * K + k[:, None] * K + (column + n)[None, :]
        tl.store(to, current)
        if segment + 1 < end:
            base = summary + (tl.cast(source + segment - begin, tl.int64) * H + head) * K * 2 * K + k[:, None] * 2 * K
            a = tl.load(base + K + k[None, :])
            b = tl.load(base + (column + n)[None, :])
            current = tl.dot(a, current, b, input_precision="tf32x3")


@triton.jit
def _scan(
    w, u, qg, kg, scores, ends, entry, o, segments, state, slot, state_slot, state_head,
    H: tl.constexpr, K: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Outputs of one segment and head for a block of columns; a request's last segment leaves its state in the slot."""
    segment, head, column = tl.program_id(0), tl.program_id(1), tl.program_id(2) * N
    begin, end = tl.load(segments + segment * 5).to(tl.int64), tl.load(segments + segment * 5 + 1).to(tl.int64)
    chunk = tl.load(segments + segment * 5 + 4).to(tl.int64)
    k, n, c = tl.arange(0, K), tl.arange(0, N), tl.arange(0, C)
    current = tl.load(entry + (segment.to(tl.int64) * H + head) * K * K + k[:, None] * K + (column + n)[None, :])
    for row0 in range(begin, end, C):
        row = row0 + c
        inside = row < end
        wide = (row * H + head)[:, None] * K
        w_tile = tl.load(w + wide + k[None, :], mask=inside[:, None], other=0.0)
        q_tile = tl.load(qg + wide + k[None, :], mask=inside[:, None], other=0.0)
        k_tile = tl.load(kg + wide + k[None, :], mask=inside[:, None], other=0.0)
        u_tile = tl.load(u + wide + (column + n)[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        a_tile = tl.load(scores + (row * H + head)[:, None] * C + c[None, :], mask=inside[:, None], other=0.0)
        a_tile = tl.where(c[:, None] >= c[None, :], a_tile, 0.0)
        decay = tl.exp2(tl.load(ends + (chunk * H + head) * K + k))
        chunk += 1
        narrow = current.to(w_tile.dtype)
        fresh = (u_tile - tl.dot(w_tile, narrow)).to(w_tile.dtype)
        out = tl.dot(a_tile, fresh, tl.dot(q_tile, narrow))
        tl.store(o + wide + (column + n)[None, :], out.to(o.dtype.element_ty), mask=inside[:, None])
        current = tl.dot(tl.trans(k_tile), fresh, current * decay[:, None])
    own_slot = tl.load(slot + tl.load(segments + segment * 5 + 2)).to(tl.int64)
    if (tl.load(segments + segment * 5 + 3) != 0) & (own_slot > 0):
        to = state + own_slot * state_slot + head * state_head + k[:, None] * K + (column + n)[None, :]
        tl.store(to, current.to(state.dtype.element_ty))


def run_segments(
    prepared: Prepared, cut: Plan, o_THD: Tensor, state_SHKV: Tensor, slot_R: Tensor, has_state_R: Tensor
) -> None:
    """Write the outputs of every real row, and each request's final state into its slot."""
    p, (heads, width) = prepared, o_THD.shape[1:]
    entry = _entry_states(p, cut, state_SHKV, slot_R, has_state_R)
    grid: Any = (cut.segment_S5.shape[0], heads, width // SCAN_COLUMNS)
    _scan[grid](
        p.w_THD, p.u_THD, p.qg_THD, p.kg_THD, p.scores_THC, p.ends_NHD, entry, o_THD, cut.segment_S5, state_SHKV,
        slot_R, state_SHKV.stride(0), state_SHKV.stride(1),
        H=heads, K=width, C=CHUNK, N=SCAN_COLUMNS, num_warps=SCAN_WARPS, num_stages=SCAN_STAGES,
    )  # fmt: skip


def _entry_states(p: Prepared, cut: Plan, state_SHKV: Tensor, slot_R: Tensor, has_state_R: Tensor) -> Tensor:
    heads, width = p.u_THD.shape[1:]
    summarised, segments = cut.summarised.shape[0], cut.segment_S5.shape[0]
    summary = torch.empty((max(1, summarised), heads, width, 2 * width), dtype=torch.float32, device=p.u_THD.device)
    if summarised:
        grid: Any = (summarised, heads, 2 * width // SUMMARY_COLUMNS)
        _summaries[grid](
            p.w_THD, p.u_THD, p.kg_THD, p.ends_NHD, summary, cut.segment_S5, cut.summarised,
            H=heads, K=width, C=CHUNK, N=SUMMARY_COLUMNS, num_warps=SUMMARY_WARPS, num_stages=SUMMARY_STAGES,
        )  # fmt: skip
    entry = torch.empty((segments, heads, width, width), dtype=torch.float32, device=p.u_THD.device)
    resumes = has_state_R.view(torch.uint8) if has_state_R.dtype == torch.bool else has_state_R
    grid = (cut.requests, heads, width // 64)
    strides = (state_SHKV.stride(0), state_SHKV.stride(1))
    _entries[grid](
        summary, entry, cut.first_R1, state_SHKV, slot_R, resumes, *strides, H=heads, K=width, N=64, num_warps=4
    )
    return entry
