"""Expert by expert over the rows that chose it, in fixed row tiles (CPU).

T rows, K choices, C channels, I inner width, E experts.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from stack.kernels.linear_fp8.torch_dequantized import linear_fp8
from stack.kernels.moe.experts import Experts, SharedExpert, with_shared
from stack.kernels.quantize_rows.torch_group import quantize_rows
from stack.kernels.quantized import Fp8Weight, QuantizedRows
from stack.kernels.row_tiles import tiled_matmul
from stack.kernels.swiglu.torch_rows import swiglu


def missing(device: str) -> str | None:
    """The host decides which experts run."""
    return None if device == "cpu" else "its loop over experts is for the CPU"


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
    """See the op's contract."""
    top_k = ids_TK.shape[1]
    pair_TK = ids_TK.flatten().long()
    order = torch.argsort(pair_TK, stable=True)
    counts = torch.bincount(pair_TK + 1).tolist()
    outputs = torch.zeros(pair_TK.shape[0], x_TC.shape[1])
    begin = counts[0]
    for expert, count in enumerate(counts[1:]):
        if count:
            pairs = order[begin : begin + count]
            outputs[pairs] = _expert(x_TC[pairs // top_k], experts, expert, limit, swiglu_quant)
        begin += count
    outputs = outputs.view(-1, top_k, x_TC.shape[1])
    y_TC = torch.zeros(x_TC.shape, dtype=torch.float32)
    for choice in range(top_k):
        y_TC.addcmul_(outputs[:, choice], weights_TK[:, choice, None])
    return with_shared(y_TC.to(x_TC.dtype), x_TC, shared, rows)


def _expert(
    x: Tensor, experts: Experts, expert: int, limit: float | None, swiglu_quant: Callable[..., QuantizedRows]
) -> Tensor:
    gate_up, down = experts.gate_up, experts.down
    if isinstance(gate_up, Tensor):
        assert isinstance(down, Tensor)
        inner = swiglu(tiled_matmul(x, gate_up[expert]).to(x.dtype), limit=limit)
        return tiled_matmul(inner, down[expert])
    assert isinstance(down, Fp8Weight)
    up = Fp8Weight(gate_up.codes_NK[expert], gate_up.scale_NK[expert])
    inner_rows = swiglu_quant(linear_fp8(quantize_rows(x), up, out_dtype=x.dtype), limit=limit)
    return linear_fp8(inner_rows, Fp8Weight(down.codes_NK[expert], down.scale_NK[expert]), out_dtype=torch.float32)
