"""Tiles of rows and groups: one read, codes and TMA-ready scales written at once. G groups of 128 columns."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.devices import cuda_only
from stack.kernels.quantized import GROUP, QuantizedRows, empty_scales

missing = cuda_only

ROWS = 4
"""Rows of a program: as many as share one 16-byte line of a group's scales."""
GROUPS = 8


@triton.jit
def encode(x):
    """Codes and scales of FP32 groups [R, G, 128]. The quotient is a true division: an exact residual mends the
    product."""
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(x), axis=2), 1e-10), 448.0)
    inverse = tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)[:, :, None]
    estimate = x * inverse
    quotient = tl.fma(tl.fma(-estimate, tl.broadcast_to(scale[:, :, None], x.shape), x), inverse, estimate)
    return quotient.to(tl.float8e4nv), scale


@triton.jit
def _quantize(x, codes, scales, rows, width, groups, x_row, scale_group, R: tl.constexpr, G: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    group = tl.program_id(1) * G + tl.arange(0, G)
    column = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = (row < rows)[:, None, None] & (column < width)[None, :, :]
    values = tl.load(x + row[:, None, None] * x_row + column[None, :, :], mask=inside, other=0.0).to(tl.float32)
    code, scale = encode(values)
    tl.store(codes + row[:, None, None] * width + column[None, :, :], code, mask=inside)
    tl.store(
        scales + row[:, None] + group[None, :] * scale_group,
        scale,
        mask=(row < rows)[:, None] & (group < groups)[None, :],
    )


def quantize_rows(x_TK: Tensor) -> QuantizedRows:
    """See the op's contract."""
    rows, width = x_TK.shape
    groups = -(-width // GROUP)
    codes_TK = torch.empty((rows, width), dtype=torch.float8_e4m3fn, device=x_TK.device)
    scale_TG = empty_scales(rows, groups, x_TK.device)
    if rows:
        grid: Any = (triton.cdiv(rows, ROWS), triton.cdiv(groups, GROUPS))
        strides = (x_TK.stride(0), scale_TG.stride(1))
        _quantize[grid](x_TK, codes_TK, scale_TG, rows, width, groups, *strides, R=ROWS, G=GROUPS, num_warps=4)
    return QuantizedRows(codes_TK, scale_TG)
