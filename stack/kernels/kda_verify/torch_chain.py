"""The rows of a verify: whole-batch vector work, then the shared recurrent step on a copy of each state (CPU).

R requests of `width` rows, T = R * width, X = 3 * H * D channels, H heads, D = K = V widths, N ring entries.
"""

import torch
from torch import Tensor

from stack.core.memory import ReplayRing
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
from stack.kernels.kda_conv.torch_conv import read_windows


def kda_verify(
    x_TX: Tensor,
    f_THD: Tensor,
    b_TH: Tensor,
    weight_X4: Tensor,
    A_log_H: Tensor,
    dt_bias_HD: Tensor,
    state_SHKV: Tensor,
    conv_SHCDW: Tensor,
    slot_R: Tensor,
    ring_R: Tensor,
    ring: ReplayRing,
    *,
    width: int,
    lower_bound: float,
    snapshots_NWHKV: Tensor | None = None,
) -> Tensor:
    """Outputs [T, H, D] in x's dtype; the ring entries of live requests hold what a commit replays."""
    head_dim = f_THD.shape[-1]
    x_RWX = x_TX.unflatten(0, (-1, width))
    inputs = torch.cat((read_windows(conv_SHCDW[slot_R.long()]).to(x_TX.dtype), x_RWX), 1)
    taps = [inputs[:, back : back + width].flatten(0, 1) for back in range(4)]
    u_TX = convolve(taps, weight_X4).to(x_TX.dtype)
    q, raw_k, v = split_heads(u_TX, head_dim)
    q, k = normalize(q.float()) * head_dim**-0.5, normalize(raw_k.float())
    g = log_decay(f_THD, A_log_H, dt_bias_HD, lower_bound)
    beta = row_sigmoid(b_TH)
    _keep(ring, slot_R, ring_R, width, k=raw_k, v=v, g=g, beta=beta, x=x_TX)
    decay = g.exp()
    rows = [readers(k, q, decay), k[..., None], v.float(), decay[..., None], beta[..., None]]
    steps_TH2V = q.new_zeros(*q.shape[:2], 2, head_dim)
    per_row = list(zip(steps_TH2V, *rows, strict=True))
    for request, (slot, entry) in enumerate(zip(slot_R.tolist(), ring_R.tolist(), strict=True)):
        if slot == 0:
            continue
        state_HKV = state_SHKV[slot].to(torch.float32, copy=True)
        for offset, (out_H2V, *row) in enumerate(per_row[request * width : (request + 1) * width]):
            out_H2V.copy_(step(state_HKV, *row))
            if snapshots_NWHKV is not None:
                snapshots_NWHKV[entry, offset] = state_HKV.to(snapshots_NWHKV.dtype)
    o_THD = outputs(steps_TH2V, k, q)
    o_THD.unflatten(0, (-1, width))[slot_R == 0] = 0.0
    return o_THD.to(x_TX.dtype)


def _keep(ring: ReplayRing, slot_R: Tensor, ring_R: Tensor, width: int, **inputs: Tensor) -> None:
    live_L = (slot_R > 0).nonzero()[:, 0]
    entries_L = ring_R.long()[live_L]
    for name, value in inputs.items():
        field = getattr(ring, "beta_NWH" if name == "beta" else "x_NWX" if name == "x" else f"{name}_NWHD")
        field[entries_L, :width] = value.unflatten(0, (-1, width))[live_L].to(field.dtype)
