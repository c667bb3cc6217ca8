"""Norm and quantisation of a row in one program: one read, and the row written in both forms.

Codes and scales are those of the rounded row, so of the chain wherever its bits are.
"""

# mypy: disable-error-code="no-untyped-def"

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.devices import cuda_only
from stack.kernels.quantize_rows.triton_group import encode
from stack.kernels.quantized import GROUP, QuantizedRows, empty_scales
from stack.kernels.rms_norm.triton_rows import rms_norm

__all__ = ["missing", "rms_norm", "rms_norm_quant"]

missing = cuda_only


@triton.jit
def _norm_quant(x, weight, y, codes, scales, x_row, width, scale_group, eps, G: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, G)
    column = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = column < width
    values = tl.load(x + row * x_row + column, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(tl.sum(values * values, axis=1), axis=0) / width + eps)
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    rounded = (gain * values * scale).to(y.dtype.element_ty)
    tl.store(y + row * width + column, rounded, mask=inside)
    code, steps = encode(rounded.to(tl.float32)[None, :, :])
    tl.store(codes + row * width + column, tl.reshape(code, (G, 128)), mask=inside)
    tl.store(scales + row + group * scale_group, tl.reshape(steps, (G,)), mask=group * 128 < width)


def rms_norm_quant(
    x_TC: Tensor, weight_C: Tensor, *, eps: float, quantize_rows: Callable[..., QuantizedRows] | None
) -> tuple[Tensor, QuantizedRows]:
    """See the op's contract; it needs no `quantize_rows`. Rows may be strided, of a multiple of 128 values."""
    rows, width = x_TC.shape
    if width % GROUP:
        raise ValueError(f"triton_quant takes rows of a multiple of {GROUP} values, not {width}")
    y_TC = torch.empty((rows, width), dtype=x_TC.dtype, device=x_TC.device)
    codes_TC = torch.empty((rows, width), dtype=torch.float8_e4m3fn, device=x_TC.device)
    scale_TG = empty_scales(rows, width // GROUP, x_TC.device)
    if rows:
        groups = triton.next_power_of_2(width // GROUP)
        grid: Any = (rows,)
        strides = (x_TC.stride(0), width, scale_TG.stride(1))
        _norm_quant[grid](
            x_TC, weight_C, y_TC, codes_TC, scale_TG, *strides, eps, G=groups, num_warps=max(1, min(8, groups // 4))
        )  # fmt: skip
    return y_TC, QuantizedRows(codes_TC, scale_TG)
