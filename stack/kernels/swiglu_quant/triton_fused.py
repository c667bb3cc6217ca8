"""Activation and quantisation in one kernel: gate and up are read once, codes and TMA-ready scales written once.

The product is rounded to BF16 before its scale is taken, so codes and scales are those of the chain, to the bit.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.devices import cuda_only
from stack.kernels.quantize_rows.triton_group import encode
from stack.kernels.quantized import GROUP, QuantizedRows, empty_scales
from stack.kernels.swiglu.triton_rows import clamped

missing = cuda_only

ROWS = 4
GROUPS = 4


@triton.jit
def _fused(
    gate_up,
    codes,
    scales,
    rows,
    width,
    row_stride,
    scale_group,
    limit,
    HAS_LIMIT: tl.constexpr,
    R: tl.constexpr,
    G: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    group = tl.program_id(1) * G + tl.arange(0, G)
    column = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = (row < rows)[:, None, None] & (column < width)[None, :, :]
    at = gate_up + row[:, None, None] * row_stride + column[None, :, :]
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    code, scale = encode(clamped(gate, up, limit, HAS_LIMIT).to(tl.bfloat16).to(tl.float32))
    tl.store(codes + row[:, None, None] * width + column[None, :, :], code, mask=inside)
    tl.store(
        scales + row[:, None] + group[None, :] * scale_group,
        scale,
        mask=(row < rows)[:, None] & (group * 128 < width)[None, :],
    )


def swiglu_quant(gate_up_TI2: Tensor, *, limit: float | None) -> QuantizedRows:
    """See the op's contract."""
    rows, width = gate_up_TI2.shape[0], gate_up_TI2.shape[1] // 2
    codes_TI = torch.empty((rows, width), dtype=torch.float8_e4m3fn, device=gate_up_TI2.device)
    scale_TG = empty_scales(rows, -(-width // GROUP), gate_up_TI2.device)
    if rows:
        grid: Any = (triton.cdiv(rows, ROWS), triton.cdiv(width, GROUPS * GROUP))
        _fused[grid](
            gate_up_TI2,
            codes_TI,
            scale_TG,
            rows,
            width,
            gate_up_TI2.stride(0),
            scale_TG.stride(1),
            0.0 if limit is None else limit,
            HAS_LIMIT=limit is not None,
            R=ROWS,
            G=GROUPS,
            num_warps=4,
        )
    return QuantizedRows(codes_TI, scale_TG)
