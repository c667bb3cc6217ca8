"""Tiles of rows and columns: one read of gate and up, one write."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.devices import cuda_only

missing = cuda_only

_COLUMNS = 1024


@triton.jit
def clamped(gate, up, limit, HAS_LIMIT: tl.constexpr):
    """silu(min(gate, limit)) * clamp(up, -limit, limit) in FP32."""
    if HAS_LIMIT:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _swiglu(gate_up, y, row_stride, width, limit, HAS_LIMIT: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    gate = tl.load(gate_up + row * row_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + width + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * width + columns, clamped(gate, up, limit, HAS_LIMIT).to(y.dtype.element_ty), mask=inside)


def swiglu(gate_up_TI2: Tensor, *, limit: float | None) -> Tensor:
    """See the op's contract."""
    rows, width = gate_up_TI2.shape[0], gate_up_TI2.shape[1] // 2
    y_TI = torch.empty((rows, width), dtype=gate_up_TI2.dtype, device=gate_up_TI2.device)
    if rows:
        grid: Any = (rows, triton.cdiv(width, _COLUMNS))
        _swiglu[grid](
            gate_up_TI2,
            y_TI,
            gate_up_TI2.stride(0),
            width,
            0.0 if limit is None else limit,
            HAS_LIMIT=limit is not None,
            COLUMNS=min(_COLUMNS, triton.next_power_of_2(width)),
            num_warps=4,
        )
    return y_TI
