"""One row and one choice at a time."""

from collections.abc import Callable

import torch
from torch import Tensor

from stack.kernels.linear.reference import linear
from stack.kernels.linear_fp8.reference import linear_fp8
from stack.kernels.moe.experts import Experts, SharedExpert, with_shared
from stack.kernels.quantize_rows.reference import quantize_rows
from stack.kernels.quantized import Fp8Weight, QuantizedRows
from stack.kernels.swiglu.reference import swiglu


def moe(
    x_TC: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    experts: Experts,
    *,
    limit: float | None,
    swiglu_quant: Callable[..., QuantizedRows],
    shared: SharedExpert | None = None,
    rows: QuantizedRows | None = None,
) -> Tensor:
    """The weighted sum of the chosen experts [T, C] in x's dtype, and then the shared one's output."""
    y_TC = torch.zeros(x_TC.shape, dtype=torch.float32, device=x_TC.device)
    for row, ids in enumerate(ids_TK.tolist()):
        for choice, expert in enumerate(ids):
            if expert >= 0:
                y = _expert(x_TC[row : row + 1], experts, expert, limit, swiglu_quant)
                y_TC[row] += weights_TK[row, choice] * y[0]
    return with_shared(y_TC.to(x_TC.dtype), x_TC, shared, rows)


def _expert(
    x: Tensor, experts: Experts, expert: int, limit: float | None, swiglu_quant: Callable[..., QuantizedRows]
) -> Tensor:
    gate_up, down = experts.gate_up, experts.down
    if isinstance(gate_up, Tensor):
        assert isinstance(down, Tensor)
        return linear(swiglu(linear(x, gate_up[expert]), limit=limit), down[expert], out_dtype=torch.float32)
    assert isinstance(down, Fp8Weight)
    up = Fp8Weight(gate_up.codes_NK[expert], gate_up.scale_NK[expert])
    inner = swiglu_quant(linear_fp8(quantize_rows(x), up, out_dtype=x.dtype), limit=limit)
    return linear_fp8(inner, Fp8Weight(down.codes_NK[expert], down.scale_NK[expert]), out_dtype=torch.float32)
