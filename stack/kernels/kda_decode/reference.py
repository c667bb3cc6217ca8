"""The prefill references on passes of one token."""

import torch
from torch import Tensor

from stack.kernels.kda_chunk.reference import kda_chunk
from stack.kernels.kda_conv.reference import kda_conv


def kda_decode(
    x_RX: Tensor,
    f_RHD: Tensor,
    b_RH: Tensor,
    weight_X4: Tensor,
    A_log_H: Tensor,
    dt_bias_HD: Tensor,
    state_SHKV: Tensor,
    conv_SHCDW: Tensor,
    slot_R: Tensor,
    *,
    lower_bound: float,
) -> Tensor:
    """Outputs [R, H, D] in x's dtype; states and windows of live slots advance in place."""
    count = x_RX.shape[0]
    start_R1 = torch.arange(count + 1, device=x_RX.device)
    resumes = torch.ones(count, dtype=torch.bool, device=x_RX.device)
    packing = (slot_R, start_R1, start_R1[:-1], start_R1[:-1], resumes)
    wide = x_RX.double()
    q, k, v = kda_conv(wide, weight_X4, conv_SHCDW, *packing)
    lengths = (1,) * count
    gates = (f_RHD, b_RH, A_log_H, dt_bias_HD)
    o_RHD = kda_chunk(
        q, k, v, *gates, state_SHKV, slot_R, start_R1, resumes, lower_bound=lower_bound, extend_lens=lengths
    )
    return o_RHD.to(x_RX.dtype)
