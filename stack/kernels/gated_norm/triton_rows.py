"""Head rows in blocks of one program: one read of both operands, one write. T rows, H heads, D head width."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.devices import cuda_only

missing = cuda_only

_BLOCK_ROWS = 16  # tuned by eye on an H200: 4 KiB of each operand a program


@triton.jit
def _gate(
    o, gate, weight, y, head_rows, heads, o_row, o_head, gate_row, gate_head, eps, D: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, D)
    inside = (row < head_rows)[:, None]
    token, head = row // heads, row % heads
    values = tl.load(o + (token * o_row + head * o_head)[:, None] + columns[None, :], mask=inside, other=0.0).to(
        tl.float32
    )
    gates = tl.load(gate + (token * gate_row + head * gate_head)[:, None] + columns[None, :], mask=inside, other=0.0)
    scale = 1.0 / tl.sqrt_rn(tl.sum(values * values, axis=1) / D + eps)
    gain = tl.load(weight + columns).to(tl.float32)[None, :]
    result = gain * values * scale[:, None] / (1.0 + tl.exp(-gates.to(tl.float32)))
    tl.store(y + row[:, None] * D + columns[None, :], result.to(y.dtype.element_ty), mask=inside)


def gated_norm(o_THD: Tensor, gate_THD: Tensor, weight_D: Tensor, *, eps: float) -> Tensor:
    """See the op's contract. D must be a power of two; both inputs may be strided over T and H."""
    rows, heads, head_dim = o_THD.shape
    y_TX = torch.empty((rows, heads * head_dim), dtype=o_THD.dtype, device=o_THD.device)
    if rows:
        grid: Any = (triton.cdiv(rows * heads, _BLOCK_ROWS),)
        strides = (o_THD.stride(0), o_THD.stride(1), gate_THD.stride(0), gate_THD.stride(1))
        _gate[grid](
            o_THD,
            gate_THD,
            weight_D,
            y_TX,
            rows * heads,
            heads,
            *strides,
            eps,
            D=head_dim,
            ROWS=_BLOCK_ROWS,
            num_warps=4,
        )
    return y_TX
