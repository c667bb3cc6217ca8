"""DeepGEMM over rows sorted by expert: prefill, and batches whose experts get a handful of rows each.

Rows of an expert are padded to 128 where experts are full, to 64 where they are not: the product then reads each
weight once and pads little.
T tokens, K choices, C channels, E experts, I inner width, M sorted rows.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from stack.kernels.devices import hopper_only, package_missing
from stack.kernels.moe.experts import Experts, SharedExpert, with_shared
from stack.kernels.moe.routing import Places, combine, scatter_quantized, sort_by_expert
from stack.kernels.quantized import Fp8Weight, QuantizedRows

FULL_ROWS = 192
"""Mean rows of an expert from which 128-row tiles are used (H200, 72 experts of 4096 x 4096)."""


def missing(device: str) -> str | None:
    """Needs Hopper, and a DeepGEMM that loads."""
    return hopper_only(device) or package_missing("deep_gemm")


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
    """See the op's contract. Experts must be Fp8Weights. Its own rows are quantised on their way to their places."""
    if not x_TC.shape[0]:
        return torch.empty_like(x_TC)
    rows_MC, places = sorted_outputs(x_TC, ids_TK, experts, limit=limit, swiglu_quant=swiglu_quant)
    return with_shared(combine(rows_MC, places, weights_TK), x_TC, shared, rows)


def sorted_outputs(
    x_TC: Tensor,
    ids_TK: Tensor,
    experts: Experts,
    *,
    limit: float | None,
    swiglu_quant: Callable[..., QuantizedRows],
) -> tuple[Tensor, Places]:
    """The routed experts' outputs [M, C] in sorted order, and where each choice's row lies."""
    gate_up, down = experts.gate_up, experts.down
    if not isinstance(gate_up, Fp8Weight) or not isinstance(down, Fp8Weight):
        raise ValueError("deep_gemm_contiguous takes FP8 experts; use triton_grouped or torch_grouped for others")
    num_experts = gate_up.codes_NK.shape[0]
    align = 128 if ids_TK.numel() >= FULL_ROWS * num_experts else 64
    places = sort_by_expert(ids_TK, num_experts, align)
    inner_MI2 = grouped_product(scatter_quantized(x_TC, places), gate_up, places.layout_M, align)
    return grouped_product(swiglu_quant(inner_MI2, limit=limit), down, places.layout_M, align), places


def grouped_product(x: QuantizedRows, weight: Fp8Weight, layout_M: Tensor, align: int) -> Tensor:
    """Each row times the weight [N, K] of its expert `layout_M`, [M, N] in BF16; `align` rows in a row share one."""
    import deep_gemm
    from deep_gemm.utils import layout

    layout.set_mk_alignment_for_contiguous_layout(align)
    shape = (x.codes_TK.shape[0], weight.codes_NK.shape[1])
    y_MN = torch.empty(shape, dtype=torch.bfloat16, device=x.codes_TK.device)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(
        (x.codes_TK, x.scale_TG), (weight.codes_NK, weight.scale_NK), y_MN, layout_M
    )
    return y_MN
