"""One kernel a piece: attention reads the context where it lies, the convolution makes its taps as it goes.

Attention: a program takes one request, one key head and one of `PARTS` parts of the context, always the same number,
so that a row's result never depends on its batch; the block's own rows are one tile more of the first part; a merge
follows. Products of BF16 are exact and summed in FP32; probabilities enter as the sum of two values of the keys' dtype,
so the output's rounding is the only one that shows. FP32 inputs are multiplied in FP32. Angles are computed in FP64.

B requests, W rows of a block, C context rows or channels, H query heads, G key heads, D head width, M = W * H / G query
rows padded to a tile, N groups of channels, E drafted slots, K candidates, R selector rank.
"""

from collections.abc import Callable
from math import log2, pi
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.devices import cuda_only
from stack.kernels.sparse_mla.triton_merge import merge_partials

missing = cuda_only

PARTS = 4
"""Parts of a context. 140 requests of two key heads are 1,120 programs; not tuned on any machine yet."""
TILE = 64
"""Keys of an iteration; two stages more are on their way."""
LAUNCH = (4, 3)
"""Warps, stages."""
COLUMNS = 1024
"""Channels of a program of the convolution."""


@triton.jit
def _fold(query, keys, values, visible, scale_log2, peak, total, mixed, IS_FP32: tl.constexpr):
    """Online softmax: the state after one more tile of keys."""
    score = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale_log2
    score = tl.where(visible, score, float("-inf"))
    top = tl.maximum(peak, tl.max(score, axis=1))
    p = tl.exp2(score - top[:, None])
    shrink = tl.exp2(peak - top)
    mixed = mixed * shrink[:, None]
    if IS_FP32:
        mixed = tl.dot(p, values, mixed, input_precision="ieee")
    else:
        high = p.to(values.dtype)
        mixed = tl.dot((p - high.to(tl.float32)).to(values.dtype), values, mixed)
        mixed = tl.dot(high, values, mixed)
    return top, total * shrink + tl.sum(p, axis=1), mixed


@triton.jit
def _attend(
    q, k, v, pool_k, pool_v, first, second, context_position, position, partial, lse,
    scale_log2, width, group, heads, window, length, tiles,
    q_block, q_row, q_head, k_block, k_row, k_head, v_block, v_row, v_head, pool_first, pool_second, pool_head,
    first_block, first_row, second_block, second_row, seen_block, seen_row, position_block, position_row, out_part,
    lse_part,
    M: tl.constexpr, D: tl.constexpr, N: tl.constexpr, OWN: tl.constexpr, IS_FP32: tl.constexpr,
):  # fmt: skip
    b, g, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    m, d, n = tl.arange(0, M), tl.arange(0, D), tl.arange(0, N)
    row, head = m // group, g * group + m % group
    inside = row < width
    query = tl.load(
        q + b * q_block + row[:, None] * q_row + head[:, None] * q_head + d[None, :], mask=inside[:, None], other=0.0
    )
    at = tl.load(position + b * position_block + row * position_row, mask=inside, other=0).to(tl.int32)
    oldest = at - (window - 1)
    oldest_of_all = tl.min(tl.where(inside, oldest, 2147483647), axis=0)
    peak = tl.full((M,), -1e30, tl.float32)
    total = tl.zeros((M,), tl.float32)
    mixed = tl.zeros((M, D), tl.float32)

    w = tl.arange(0, OWN)
    own = (w < width) & (part == 0)
    own_keys = tl.load(k + b * k_block + w[:, None] * k_row + g * k_head + d[None, :], mask=own[:, None], other=0.0)
    own_values = tl.load(v + b * v_block + w[:, None] * v_row + g * v_head + d[None, :], mask=own[:, None], other=0.0)
    peak, total, mixed = _fold(query, own_keys, own_values, own[None, :], scale_log2, peak, total, mixed, IS_FP32)

    for tile in range(tiles):
        c = (part * tiles + tile) * N + n
        exists = c < length
        stands = tl.load(context_position + b * seen_block + c * seen_row, mask=exists, other=-1).to(tl.int32)
        exists = (stands >= 0) & (stands >= oldest_of_all)
        place = tl.load(first + b * first_block + c * first_row, mask=exists, other=0).to(tl.int64) * pool_first
        place += tl.load(second + b * second_block + c * second_row, mask=exists, other=0).to(tl.int64) * pool_second
        place += g * pool_head
        keys = tl.load(pool_k + place[:, None] + d[None, :], mask=exists[:, None], other=0.0)
        values = tl.load(pool_v + place[:, None] + d[None, :], mask=exists[:, None], other=0.0)
        visible = exists[None, :] & (stands[None, :] >= oldest[:, None])
        peak, total, mixed = _fold(query, keys, values, visible, scale_log2, peak, total, mixed, IS_FP32)

    share = tl.where(total > 0, 1.0 / total, 0.0)
    to = (b * width + row) * heads + head
    out = partial + part.to(tl.int64) * out_part + to[:, None] * D + d[None, :]
    tl.store(out, mixed * share[:, None], mask=inside[:, None])
    logs = tl.where(total > 0, peak + tl.log2(total), float("-inf"))
    tl.store(lse + part.to(tl.int64) * lse_part + to, logs, mask=inside)


def block_attention(
    q_BWHD: Tensor,
    k_BWGD: Tensor,
    v_BWGD: Tensor,
    pool_k_SPGD: Tensor,
    pool_v_SPGD: Tensor,
    first_BC: Tensor,
    second_BC: Tensor,
    context_position_BC: Tensor,
    position_BW: Tensor,
    *,
    window: int,
    scale: float,
) -> Tensor:
    """See the op's contract. All but the indices in one dtype, D a power of two, both pools strided alike."""
    batch, width, heads, dim = q_BWHD.shape
    num_kv, length = k_BWGD.shape[2], first_BC.shape[1]
    _check_attention(q_BWHD, (k_BWGD, v_BWGD, pool_k_SPGD, pool_v_SPGD))
    out = torch.empty((batch, width, heads, dim), dtype=q_BWHD.dtype, device=q_BWHD.device)
    if not batch:
        return out
    partial = out.new_empty((PARTS, batch * width, heads, dim), dtype=torch.float32)
    lse = out.new_empty((PARTS, batch * width, heads), dtype=torch.float32)
    warps, stages = LAUNCH
    grid: Any = (batch, num_kv, PARTS)
    _attend[grid](
        q_BWHD, k_BWGD, v_BWGD, pool_k_SPGD, pool_v_SPGD, first_BC, second_BC, context_position_BC, position_BW,
        partial, lse, scale * 1.4426950408889634, width, heads // num_kv, heads, window, length,
        triton.cdiv(triton.cdiv(length, TILE), PARTS), *q_BWHD.stride()[:3], *k_BWGD.stride()[:3],
        *v_BWGD.stride()[:3], *pool_k_SPGD.stride()[:3], *first_BC.stride(), *second_BC.stride(),
        *context_position_BC.stride(), *position_BW.stride(), partial.stride(0), lse.stride(0),
        M=max(16, triton.next_power_of_2(width * (heads // num_kv))), D=dim, N=TILE,
        OWN=max(16, triton.next_power_of_2(width)), IS_FP32=q_BWHD.dtype == torch.float32, num_warps=warps,
        num_stages=stages,
    )  # fmt: skip
    merge_partials(partial, lse, out.view(-1, heads, dim))
    return out


def _check_attention(q: Tensor, others: tuple[Tensor, ...]) -> None:
    k_pool, v_pool = others[-2:]
    if any(x.dtype != q.dtype or x.stride(-1) != 1 for x in (q, *others)):
        raise ValueError("triton_block takes rows of adjacent values, all of the queries' dtype")
    if q.shape[-1] < 16 or q.shape[-1] & (q.shape[-1] - 1) or k_pool.stride() != v_pool.stride():
        raise ValueError(
            "triton_block needs a power-of-two head width of 16 or more, and pools of K and V strided alike"
        )


@triton.jit
def _turn(
    x, gain, position, y, x_row, x_head, heads, queries, eps,
    RATE: tl.constexpr, TURN: tl.constexpr, H: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    h, i = tl.arange(0, H), tl.arange(0, HALF)
    inside = (h < heads)[:, None]
    left = x + t * x_row + h[:, None] * x_head + i[None, :]
    a = tl.load(left, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(left + HALF, mask=inside, other=0.0).to(tl.float32)
    norm = 1.0 / tl.sqrt_rn(tl.sum(a * a + b * b, axis=1) / (2 * HALF) + eps)
    weight = gain + tl.where(h < queries, 0, 2 * HALF)[:, None] + i[None, :]
    a *= tl.load(weight).to(tl.float32) * norm[:, None]
    b *= tl.load(weight + HALF).to(tl.float32) * norm[:, None]
    a = a.to(y.dtype.element_ty).to(tl.float32)
    b = b.to(y.dtype.element_ty).to(tl.float32)
    angle = tl.load(position + t).to(tl.float64) * tl.exp2(i.to(tl.float64) * RATE)
    angle = (angle - tl.floor(angle / TURN) * TURN).to(tl.float32)
    cos, sin = tl.cos(angle)[None, :], tl.sin(angle)[None, :]
    to = y + (t * heads + h[:, None]) * (2 * HALF) + i[None, :]
    tl.store(to, (a * cos - b * sin).to(y.dtype.element_ty), mask=inside)
    tl.store(to + HALF, (b * cos + a * sin).to(y.dtype.element_ty), mask=inside)


def norm_rope(
    x_THD: Tensor,
    gain_2D: Tensor,
    position_T: Tensor,
    *,
    num_queries: int,
    eps: float,
    theta: float,
    norm: Callable[..., Tensor],
) -> Tensor:
    """See the op's contract. Norm and rotation in one kernel, so `norm` is left alone; D a power of two."""
    rows, heads, dim = x_THD.shape
    if dim & (dim - 1) or x_THD.stride(-1) != 1:
        raise ValueError("triton_block needs a power-of-two head width, its values adjacent")
    y_THD = torch.empty((rows, heads, dim), dtype=x_THD.dtype, device=x_THD.device)
    if rows:
        grid: Any = (rows,)
        _turn[grid](
            x_THD, gain_2D.contiguous(), position_T.contiguous(), y_THD, x_THD.stride(0), x_THD.stride(1), heads,
            num_queries, eps, RATE=-2 * log2(theta) / dim, TURN=2 * pi, H=triton.next_power_of_2(heads), HALF=dim // 2,
            num_warps=4,
        )  # fmt: skip
    return y_THD


@triton.jit
def _convolve(y, base, dynamic, out, width, channels, size, y_row, dynamic_row, dynamic_tap, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = c < channels
    follows = inside & (row % width > 0)
    moved = dynamic + row * dynamic_row + c // size
    tap = tl.load(base + c, mask=inside, other=0.0).to(tl.float32)
    tap += tl.load(moved, mask=inside, other=0.0).to(tl.float32)
    total = tap * tl.load(y + row * y_row + c, mask=inside, other=0.0).to(tl.float32)
    tap = tl.load(base + channels + c, mask=follows, other=0.0).to(tl.float32)
    tap += tl.load(moved + dynamic_tap, mask=follows, other=0.0).to(tl.float32)
    total += tap * tl.load(y + (row - 1) * y_row + c, mask=follows, other=0.0).to(tl.float32)
    tl.store(out + row * channels + c, total.to(out.dtype.element_ty), mask=inside)


def dynamic_conv(y_BWC: Tensor, base_2C: Tensor, dynamic_BW2N: Tensor) -> Tensor:
    """See the op's contract."""
    batch, width, channels = y_BWC.shape
    y_TC, dynamic_T2N = y_BWC.flatten(0, 1), dynamic_BW2N.flatten(0, 1)
    if y_TC.stride(-1) != 1 or dynamic_T2N.stride(-1) != 1 or not base_2C.is_contiguous():
        raise ValueError("triton_block takes rows of adjacent values")
    out = torch.empty((batch, width, channels), dtype=y_BWC.dtype, device=y_BWC.device)
    if batch:
        columns = min(COLUMNS, triton.next_power_of_2(channels))
        grid: Any = (batch * width, triton.cdiv(channels, columns))
        _convolve[grid](
            y_TC, base_2C, dynamic_T2N, out, width, channels, channels // dynamic_T2N.shape[-1], y_TC.stride(0),
            dynamic_T2N.stride(0), dynamic_T2N.stride(1), COLUMNS=columns, num_warps=4,
        )  # fmt: skip
    return out


@triton.jit
def _walk(
    unary, ids, z, predecessor, successor, anchor, temperature, uniform, token, probs,
    slots, candidates, rank, anchor_row, K: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    c, r = tl.arange(0, K), tl.arange(0, R)
    real, ranks = c < candidates, r < rank
    temperature_b = tl.load(temperature + b).to(tl.float32)
    is_greedy = temperature_b == 0.0
    heat = tl.where(is_greedy, 1.0, temperature_b)
    previous = tl.load(anchor + b * anchor_row).to(tl.int64)
    for e in range(slots):
        row = b * slots + e
        pair = tl.load(predecessor + previous * rank + r, mask=ranks, other=0.0).to(tl.float32)
        pair *= tl.load(z + row * rank + r, mask=ranks, other=0.0).to(tl.float32)
        candidate = tl.load(ids + row * candidates + c, mask=real, other=0).to(tl.int64)
        follow = tl.load(
            successor + candidate[:, None] * rank + r[None, :], mask=real[:, None] & ranks[None, :], other=0.0
        )
        score = tl.load(unary + row * candidates + c, mask=real, other=float("-inf")).to(tl.float32)
        score += tl.sum(follow.to(tl.float32) * pair[None, :], axis=1)
        hot = score / heat
        q = tl.exp(hot - tl.max(hot, axis=0))
        q /= tl.sum(q, axis=0)
        total = tl.cumsum(q, axis=0)
        whole = tl.sum(tl.where(c == candidates - 1, total, 0.0), axis=0)
        passed = real & (total <= tl.load(uniform + row) * whole)
        drawn = tl.minimum(tl.sum(passed.to(tl.int32), axis=0), candidates - 1)
        chosen = tl.where(is_greedy, tl.argmax(score, axis=0), drawn)
        q = tl.where(is_greedy, (c == chosen).to(tl.float32), q)
        tl.store(probs + row * candidates + c, q, mask=real)
        previous = tl.sum(tl.where(c == chosen, candidate, 0), axis=0)
        tl.store(token + row, previous)


def selector_walk(
    unary_BEK: Tensor,
    ids_BEK: Tensor,
    z_BER: Tensor,
    predecessor_VR: Tensor,
    successor_VR: Tensor,
    anchor_B: Tensor,
    temperature_B: Tensor,
    uniform_BE: Tensor,
) -> tuple[Tensor, Tensor]:
    """See the op's contract. One program a request walks all slots; codebooks contiguous."""
    batch, slots, candidates = unary_BEK.shape
    rank = z_BER.shape[-1]
    if not (predecessor_VR.is_contiguous() and successor_VR.is_contiguous()):
        raise ValueError("triton_block takes contiguous codebooks")
    token_BE = torch.empty((batch, slots), dtype=ids_BEK.dtype, device=ids_BEK.device)
    probs_BEK = torch.empty((batch, slots, candidates), dtype=torch.float32, device=ids_BEK.device)
    if batch:
        grid: Any = (batch,)
        _walk[grid](
            unary_BEK.contiguous(), ids_BEK.contiguous(), z_BER.contiguous(), predecessor_VR, successor_VR, anchor_B,
            temperature_B.contiguous(), uniform_BE.contiguous(), token_BE, probs_BEK, slots, candidates, rank,
            anchor_B.stride(0), K=triton.next_power_of_2(candidates), R=triton.next_power_of_2(rank), num_warps=4,
        )  # fmt: skip
    return token_BE, probs_BEK
