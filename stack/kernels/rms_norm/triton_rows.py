"""One program a row: one read, one write."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.devices import cuda_only
from stack.kernels.rms_norm.chain import then_quantized

missing = cuda_only


@triton.jit
def _norm(x, weight, y, x_row, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + row * x_row + columns, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(values * values, axis=0) / width + eps)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * width + columns, (gain * values * scale).to(y.dtype.element_ty), mask=inside)


def rms_norm(x_TC: Tensor, weight_C: Tensor, *, eps: float) -> Tensor:
    """See the op's contract. Rows may be strided; their values must be adjacent."""
    rows, width = x_TC.shape
    y_TC = torch.empty((rows, width), dtype=x_TC.dtype, device=x_TC.device)
    if rows:
        block = triton.next_power_of_2(width)
        grid: Any = (rows,)
        _norm[grid](
            x_TC, weight_C, y_TC, x_TC.stride(0), width, eps, BLOCK=block, num_warps=max(1, min(8, block // 512))
        )
    return y_TC


rms_norm_quant = then_quantized(rms_norm)
