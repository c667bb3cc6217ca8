"""Convolution, SiLU, q/k norm and packing in one pass over the rows; a second, tiny launch moves the windows.

The windows cannot move in the first launch: its programs read them in no fixed order. Tiles of rows and one head of
one part.
R requests, T rows, X = 3 * H * D channels. D must be a power of two.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.devices import cuda_only

missing = cuda_only

ROWS = 32


@triton.jit
def convolved(
    x,
    weight,
    conv,
    slot,
    start,
    request,
    has_state,
    row,
    rows,
    heads,
    head,
    part,
    x_row,
    conv_slot,
    conv_head,
    D: tl.constexpr,
):
    """silu of the four taps for a tile of rows, FP32 [ROWS, D]; rows that are padding give zeros. Also says which
    rows are real."""
    d = tl.arange(0, D)
    channel = part * heads * D + head * D + d
    owner = tl.load(request + row, mask=row < rows, other=0)
    first = tl.load(start + owner)
    state_slot = tl.load(slot + owner).to(tl.int64)
    real = (row < rows) & (row >= first) & (row < tl.load(start + owner + 1)) & (state_slot > 0)
    resumes = real & (tl.load(has_state + owner) != 0)
    total = tl.zeros((row.shape[0], D), tl.float32)
    for tap in tl.static_range(4):
        source = row - 3 + tap
        inside = real & (source >= first)
        value = tl.load(
            x + source.to(tl.int64)[:, None] * x_row + channel[None, :], mask=inside[:, None], other=0.0
        ).to(tl.float32)
        if tap < 3:
            kept = resumes & (source < first)
            at = conv + state_slot * conv_slot + head * conv_head + source - first + 3
            old = tl.load(at[:, None] + ((part * D + d) * 3)[None, :], mask=kept[:, None], other=0.0)
            value += old.to(tl.float32)
        total += value * tl.load(weight + channel * 4 + tap).to(tl.float32)[None, :]
    return total / (1.0 + tl.exp(-total)), real


@triton.jit
def _conv(
    x, weight, conv, slot, start, request, has_state, q, k, v, rows, heads, x_row, conv_slot, conv_head, scale,
    D: tl.constexpr, R: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * R + tl.arange(0, R)
    part = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    u, real = convolved(
        x, weight, conv, slot, start, request, has_state, row, rows, heads, head, part, x_row, conv_slot, conv_head, D
    )
    u = tl.where(real[:, None], u, 0.0).to(q.dtype.element_ty)
    out = tl.where(part == 0, q, tl.where(part == 1, k, v))
    if NORM:
        wide = u.to(tl.float32)
        root = tl.sqrt_rn(tl.sum(wide * wide, axis=1) + 1e-6)[:, None]
        gain = tl.where(part == 0, scale, 1.0)
        u = tl.where(part < 2, tl.div_rn(wide, tl.broadcast_to(root, wide.shape)) * gain, wide).to(q.dtype.element_ty)
    at = (row.to(tl.int64) * heads + head)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(out + at, u, mask=(row < rows)[:, None])


@triton.jit
def _move_windows(x, conv, slot, start, has_state, heads, x_row, conv_slot, conv_head, D: tl.constexpr):
    owner = tl.program_id(0)
    part, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    d = tl.arange(0, D)
    state_slot = tl.load(slot + owner).to(tl.int64)
    first, last = tl.load(start + owner), tl.load(start + owner + 1)
    if (state_slot > 0) & (last > first):
        resumes = tl.load(has_state + owner) != 0
        at = conv + state_slot * conv_slot + head * conv_head + (part * D + d) * 3
        channel = part * heads * D + head * D + d
        old0 = tl.load(at + 0, mask=(d < D) & resumes, other=0.0)
        old1 = tl.load(at + 1, mask=(d < D) & resumes, other=0.0)
        old2 = tl.load(at + 2, mask=(d < D) & resumes, other=0.0)
        for w in tl.static_range(3):
            source = last - 3 + w
            back = source - first + 3  # place in the old window when the request brought fewer than three rows
            old = tl.where(back == 1, old1, tl.where(back == 2, old2, old0))
            new = tl.load(x + source.to(tl.int64) * x_row + channel, mask=(d < D) & (source >= first), other=0.0)
            tl.store(at + w, tl.where(source >= first, new.to(old.dtype), old))


def kda_conv(
    x_TX: Tensor,
    weight_X4: Tensor,
    conv_SHCDW: Tensor,
    slot_R: Tensor,
    start_R1: Tensor,
    request_T: Tensor,
    position_T: Tensor,
    has_state_R: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """See the op's contract."""
    q, k, v = launch_convolution(x_TX, weight_X4, conv_SHCDW, slot_R, start_R1, request_T, has_state_R, norm=True)
    return q, k, v


def launch_convolution(
    x_TX: Tensor,
    weight_X4: Tensor,
    conv_SHCDW: Tensor,
    slot_R: Tensor,
    start_R1: Tensor,
    request_T: Tensor,
    has_state_R: Tensor,
    *,
    norm: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v [T, H, D] after convolution and SiLU, normalised where `norm`; windows moved."""
    rows, (heads, _, head_dim) = x_TX.shape[0], conv_SHCDW.shape[1:4]
    q, k, v = (torch.empty((rows, heads, head_dim), dtype=x_TX.dtype, device=x_TX.device) for _ in range(3))
    strides = (x_TX.stride(0), conv_SHCDW.stride(0), conv_SHCDW.stride(1))
    resumes = has_state_R.view(torch.uint8) if has_state_R.dtype == torch.bool else has_state_R
    if rows:
        grid: Any = (triton.cdiv(rows, ROWS), 3 * heads)
        _conv[grid](
            x_TX, weight_X4, conv_SHCDW, slot_R, start_R1, request_T, resumes, q, k, v, rows, heads, *strides,
            head_dim**-0.5,
            D=head_dim, R=ROWS, NORM=norm, num_warps=4,
        )  # fmt: skip
    requests: Any = (slot_R.shape[0], 3 * heads)
    _move_windows[requests](x_TX, conv_SHCDW, slot_R, start_R1, resumes, heads, *strides, D=head_dim, num_warps=4)
    return q, k, v
