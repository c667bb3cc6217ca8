"""One token for each request: whole-batch vector work, then the shared recurrent step slot by slot (CPU).

R requests, X = 3 * H * D channels, H heads, D = K = V widths, W = 3 kept inputs.
"""

import torch
from torch import Tensor

from stack.kernels.delta_rule import (
    convolve,
    log_decay,
    normalize,
    outputs,
    readers,
    row_sigmoid,
    split_heads,
    step,
)
from stack.kernels.kda_conv.torch_conv import read_windows, write_windows


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
    head_dim = f_RHD.shape[-1]
    slots = slot_R.long()
    windows_RWX = read_windows(conv_SHCDW[slots]).to(x_RX.dtype)
    inputs_R4X = torch.cat((windows_RWX, x_RX[:, None]), 1)
    u_RX = convolve(inputs_R4X.unbind(1), weight_X4).to(x_RX.dtype)
    q, k, v = split_heads(u_RX, head_dim)
    q, k = normalize(q.float()) * head_dim**-0.5, normalize(k.float())
    decay = log_decay(f_RHD, A_log_H, dt_bias_HD, lower_bound).exp_()
    rows = (readers(k, q, decay), k[..., None], v.float(), decay[..., None], row_sigmoid(b_RH)[..., None])
    steps_RH2V = q.new_zeros(*q.shape[:2], 2, head_dim)
    for slot, out_H2V, *row in zip(slot_R.tolist(), steps_RH2V, *rows, strict=True):
        if slot == 0:
            continue
        state_HKV = state_SHKV[slot].float()
        out_H2V.copy_(step(state_HKV, *row))
        if state_SHKV.dtype != torch.float32:
            state_SHKV[slot] = state_HKV.to(state_SHKV.dtype)
    o_RHD = outputs(steps_RH2V, k, q)
    o_RHD[slots == 0] = 0.0
    live_L = slots.nonzero()[:, 0]
    windows = conv_SHCDW[slots[live_L]]
    write_windows(windows, inputs_R4X[live_L, 1:])
    conv_SHCDW[slots[live_L]] = windows
    return o_RHD.to(x_RX.dtype)
