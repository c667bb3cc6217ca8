"""DeepGEMM over slots: a fixed number an expert, of which it multiplies those that the device says are taken.

For decode, where a captured step knows no expert's count. Room for every token in every expert is what bounds it: its
buffers grow with tokens times experts, so it takes `MOST_ROWS` tokens at most.
T tokens, K choices, C channels, E experts, S slots an expert, I inner width.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from stack.kernels.devices import hopper_only, package_missing
from stack.kernels.moe.experts import Experts, SharedExpert, with_shared
from stack.kernels.moe.routing import combine
from stack.kernels.moe.slots import SlotRows, Slots, activate_slots, fill_slots, take_slots
from stack.kernels.quantized import Fp8Weight, QuantizedRows

MOST_ROWS = 512
"""Tokens; with 72 experts of 4096 x 2048 its buffers then take 830 MB."""
ALIGN = 128
"""Slots of an expert are a multiple of it: a tile of the product must not reach into the next expert's."""


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
    """See the op's contract. Experts must be Fp8Weights, those of a token must differ. Between the products it has an
    activation of its own, over taken slots alone."""
    tokens, gate_up, down = x_TC.shape[0], experts.gate_up, experts.down
    if not isinstance(gate_up, Fp8Weight) or not isinstance(down, Fp8Weight):
        raise ValueError("deep_gemm_masked takes FP8 experts")
    if tokens > MOST_ROWS:
        raise ValueError(f"deep_gemm_masked takes at most {MOST_ROWS} rows, not {tokens}")
    if not tokens:
        return torch.empty_like(x_TC)
    num_experts = gate_up.codes_NK.shape[0]
    slots = take_slots(ids_TK, num_experts, -(-tokens // ALIGN) * ALIGN)
    expected = -(-ids_TK.numel() // num_experts)
    inner_ESI2 = _product(fill_slots(x_TC, slots), gate_up, slots, expected)
    rows_ESC = _product(activate_slots(inner_ESI2, slots, limit), down, slots, expected)
    return with_shared(combine(rows_ESC.flatten(0, 1), slots, weights_TK), x_TC, shared, rows)


def _product(x: SlotRows, weight: Fp8Weight, slots: Slots, expected: int) -> Tensor:
    import deep_gemm

    shape = (*x.codes_ESC.shape[:2], weight.codes_NK.shape[1])
    y_ESN = torch.empty(shape, dtype=torch.bfloat16, device=x.codes_ESC.device)
    deep_gemm.fp8_m_grouped_gemm_nt_masked(
        (x.codes_ESC, x.scale_ESG), (weight.codes_NK, weight.scale_NK), y_ESN, slots.taken_E, expected
    )
    return y_ESN
