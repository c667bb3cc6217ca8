"""KDA prefill with long sequences cut into segments that run side by side.

The rule is linear in the state: a segment maps it to `A S + B`. Chunks of 64 tokens are prepared all at once (fla's
kernels: decays, triangular solves, W and U); then every segment but a request's last is summarised as (A, B), the
summaries are chained into the state at each segment's entry, and all segments run at once, outputs and states
together, the state in FP32 registers. No intermediate state goes to memory.

T rows, R requests, S segments, H heads, K = V = 128, C = 64 rows of a chunk. G is the running sum of log2 decays
inside a chunk.
"""

from ctypes import c_int64
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only, package_missing
from stack.kernels.kda_chunk.segments import CHUNK, Plan, plan

COLUMNS = 64

_GATES = CudaKernel(Path(__file__).with_name("gates.cu"), "kda_gates")


def missing(device: str) -> str | None:
    """Needs Hopper and fla-core."""
    return hopper_only(device) or package_missing("fla.ops.kda")


@triton.jit
def _summaries(
    w, u, kg, g, out, segments, summarised, H: tl.constexpr, K: tl.constexpr, C: tl.constexpr, N: tl.constexpr
):
    """Columns of [B | A] for one segment and head."""
    at = tl.program_id(0)
    head, column = tl.program_id(1), tl.program_id(2) * N
    segment = tl.load(summarised + at)
    begin, end = tl.load(segments + segment * 4).to(tl.int64), tl.load(segments + segment * 4 + 1).to(tl.int64)
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
        last = tl.minimum(row0 + C, end) - 1
        decay = tl.exp2(tl.load(g + (last * H + head) * K + k))
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
    w, u, qg, kg, attention, g, entry, o, segments, state, slot, state_slot, state_head,
    H: tl.constexpr, K: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Outputs of one segment and head for a block of columns; a request's last segment leaves its state in the slot."""
    segment, head, column = tl.program_id(0), tl.program_id(1), tl.program_id(2) * N
    begin, end = tl.load(segments + segment * 4).to(tl.int64), tl.load(segments + segment * 4 + 1).to(tl.int64)
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
        a_tile = tl.load(attention + (row * H + head)[:, None] * C + c[None, :], mask=inside[:, None], other=0.0)
        a_tile = tl.where(c[:, None] >= c[None, :], a_tile, 0.0)
        last = tl.minimum(row0 + C, end) - 1
        decay = tl.exp2(tl.load(g + (last * H + head) * K + k))
        narrow = current.to(w_tile.dtype)
        fresh = (u_tile - tl.dot(w_tile, narrow)).to(w_tile.dtype)
        out = tl.dot(a_tile, fresh, tl.dot(q_tile, narrow))
        tl.store(o + wide + (column + n)[None, :], out.to(o.dtype.element_ty), mask=inside[:, None])
        current = tl.dot(tl.trans(k_tile), fresh, current * decay[:, None])
    own_slot = tl.load(slot + tl.load(segments + segment * 4 + 2)).to(tl.int64)
    if (tl.load(segments + segment * 4 + 3) != 0) & (own_slot > 0):
        to = state + own_slot * state_slot + head * state_head + k[:, None] * K + (column + n)[None, :]
        tl.store(to, current.to(state.dtype.element_ty))


def kda_chunk(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    f_THD: Tensor,
    b_TH: Tensor,
    A_log_H: Tensor,
    dt_bias_HD: Tensor,
    state_SHKV: Tensor,
    slot_R: Tensor,
    start_R1: Tensor,
    has_state_R: Tensor,
    *,
    lower_bound: float,
    extend_lens: tuple[int, ...],
) -> Tensor:
    """See the op's contract. BF16 rows of heads of 128 values; requests with rows come first in `slot_R`."""
    heads, width = v_THD.shape[1:]
    if q_THD.dtype != torch.bfloat16 or width != 128:
        raise ValueError("split_chunk takes bfloat16 rows of heads of 128 values")
    lens = tuple(length for length in extend_lens if length)
    cut = plan(lens, v_THD.device)
    o_THD = torch.empty_like(v_THD, memory_format=torch.contiguous_format)
    o_THD[cut.rows :].zero_()
    if not lens:
        return o_THD
    real = slice(0, cut.rows)
    g, beta = _gate_rows(f_THD, b_TH, A_log_H, dt_bias_HD, cut, lower_bound)
    prepared = _prepare(q_THD[real], k_THD[real], v_THD[real], g, beta, cut)
    entry = _entry_states(prepared, g, state_SHKV, slot_R, has_state_R, cut, len(lens))
    w, u, qg, kg, attention = prepared
    grid: Any = (cut.segment_S4.shape[0], heads, width // COLUMNS)
    strides = (state_SHKV.stride(0), state_SHKV.stride(1))
    _scan[grid](
        w, u, qg, kg, attention, g, entry, o_THD, cut.segment_S4, state_SHKV, slot_R, *strides,
        H=heads, K=width, C=CHUNK, N=COLUMNS, num_warps=4, num_stages=2,
    )  # fmt: skip
    return o_THD


def _gate_rows(
    f_THD: Tensor, b_TH: Tensor, A_log_H: Tensor, dt_bias_HD: Tensor, cut: Plan, lower_bound: float
) -> tuple[Tensor, Tensor]:
    """G [T, H, K] and beta [T, H] in FP32."""
    heads, width = f_THD.shape[1:]
    g = torch.empty((cut.rows, heads, width), dtype=torch.float32, device=f_THD.device)
    beta = torch.empty((cut.rows, heads), dtype=torch.float32, device=f_THD.device)
    rows = [f_THD, c_int64(f_THD.stride(0)), c_int64(f_THD.stride(1)), b_TH, c_int64(b_TH.stride(0))]
    places = [A_log_H, dt_bias_HD, g, beta, cut.chunk_indices, cut.cu_seqlens, heads, lower_bound]
    _GATES.launch((cut.chunk_indices.shape[0], heads, 1), 64, rows + places)
    return g, beta


def _prepare(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cut: Plan) -> tuple[Tensor, ...]:
    """W, U, q exp(G), k exp(G_end - G) and the masked scores of every chunk, BF16."""
    from stack.kernels.kda_chunk.fla_configs import chunk_kda_fwd_intra

    w, u, qg, kg, attention, _ = chunk_kda_fwd_intra()(
        q=q[None], k=k[None], v=v[None], gk=g[None], beta=beta[None], scale=1.0, cu_seqlens=cut.cu_seqlens,
        chunk_size=CHUNK, chunk_indices=cut.chunk_indices, safe_gate=True, disable_recompute=True,
    )  # fmt: skip
    return w[0], u[0], qg[0], kg[0], attention[0]


def _entry_states(
    prepared: tuple[Tensor, ...],
    g: Tensor,
    state_SHKV: Tensor,
    slot_R: Tensor,
    has_state_R: Tensor,
    cut: Plan,
    requests: int,
) -> Tensor:
    w, u, _, kg, _ = prepared
    heads, width = g.shape[1:]
    summarised, segments = cut.summarised.shape[0], cut.segment_S4.shape[0]
    summary = torch.empty((max(1, summarised), heads, width, 2 * width), dtype=torch.float32, device=g.device)
    shape: dict[str, Any] = {"H": heads, "K": width, "N": COLUMNS, "num_warps": 4}
    if summarised:
        grid: Any = (summarised, heads, 2 * width // COLUMNS)
        _summaries[grid](w, u, kg, g, summary, cut.segment_S4, cut.summarised, C=CHUNK, num_stages=2, **shape)
    entry = torch.empty((segments, heads, width, width), dtype=torch.float32, device=g.device)
    resumes = has_state_R.view(torch.uint8) if has_state_R.dtype == torch.bool else has_state_R
    grid = (requests, heads, width // COLUMNS)
    strides = (state_SHKV.stride(0), state_SHKV.stride(1))
    _entries[grid](summary, entry, cut.first_R1, state_SHKV, slot_R, resumes, *strides, **shape)
    return entry
