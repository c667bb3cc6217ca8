"""A plain block-scaled product in Triton: the fallback where DeepGEMM is not installed.

Tiles of 128 inner columns, so each step has one scale per row and one per weight block. T rows, N outputs, K inner
width.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.devices import cuda_only
from stack.kernels.quantized import Fp8Weight, QuantizedRows

missing = cuda_only


@triton.jit
def _product(
    x, x_scale, w, w_scale, y, rows, outputs, width, x_scale_group, w_scale_row,
    R: tl.constexpr, N: tl.constexpr, GROUP_ROWS: tl.constexpr,
):  # fmt: skip
    row_tiles, column_tiles = tl.cdiv(rows, R), tl.cdiv(outputs, N)
    band = tl.program_id(0) // (GROUP_ROWS * column_tiles)
    height = tl.minimum(row_tiles - band * GROUP_ROWS, GROUP_ROWS)
    within = tl.program_id(0) % (GROUP_ROWS * column_tiles)
    row = (band * GROUP_ROWS + within % height) * R + tl.arange(0, R)
    column = within // height * N + tl.arange(0, N)
    inner = tl.arange(0, 128)
    a_at = x + row.to(tl.int64)[:, None] * width + inner[None, :]
    b_at = w + column.to(tl.int64)[None, :] * width + inner[:, None]
    total = tl.zeros((R, N), tl.float32)
    for group in range(0, tl.cdiv(width, 128)):
        left = inner < width - group * 128
        a = tl.load(a_at + group * 128, mask=(row < rows)[:, None] & left[None, :], other=0.0)
        b = tl.load(b_at + group * 128, mask=(column < outputs)[None, :] & left[:, None], other=0.0)
        a_scale = tl.load(x_scale + row + group * x_scale_group, mask=row < rows, other=0.0)
        b_scale = tl.load(w_scale + column // 128 * w_scale_row + group, mask=column < outputs, other=0.0)
        total += tl.dot(a, b) * a_scale[:, None] * b_scale[None, :]
    at = y + row.to(tl.int64)[:, None] * outputs + column[None, :]
    tl.store(at, total.to(y.dtype.element_ty), mask=(row < rows)[:, None] & (column < outputs)[None, :])


def linear_fp8(x: QuantizedRows, weight: Fp8Weight, *, out_dtype: torch.dtype) -> Tensor:
    """See the op's contract."""
    (rows, width), outputs = x.codes_TK.shape, weight.codes_NK.shape[0]
    y_TN = torch.empty((rows, outputs), dtype=out_dtype, device=x.codes_TK.device)
    if rows:
        block_rows = 16 if rows <= 16 else 64 if rows <= 512 else 128
        grid: Any = (triton.cdiv(rows, block_rows) * triton.cdiv(outputs, 128),)
        _product[grid](
            x.codes_TK, x.scale_TG, weight.codes_NK, weight.scale_NK, y_TN, rows, outputs, width, x.scale_TG.stride(1),
            weight.scale_NK.stride(0), R=block_rows, N=128, GROUP_ROWS=8, num_warps=8 if block_rows == 128 else 4,
            num_stages=4,
        )  # fmt: skip
    return y_TN
