"""Decode references in a row on copies of the states; the ring gets its fields from their definitions."""

import torch
from torch import Tensor

from stack.core.memory import ReplayRing
from stack.kernels.kda_decode.reference import kda_decode


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
    state, conv = state_SHKV.double(), conv_SHCDW.double()
    weights = (weight_X4, A_log_H, dt_bias_HD)
    o_THD = torch.zeros_like(f_THD, memory_format=torch.contiguous_format)
    for offset in range(width):
        rows = slice(offset, None, width)
        inputs = (x_TX[rows], f_THD[rows], b_TH[rows])
        _keep_row(ring, slot_R, ring_R, offset, inputs, weights, conv, lower_bound)
        o_THD[rows] = kda_decode(*inputs, *weights, state, conv, slot_R, lower_bound=lower_bound)
        if snapshots_NWHKV is not None:
            for slot, entry in zip(slot_R.tolist(), ring_R.tolist(), strict=True):
                if slot:
                    snapshots_NWHKV[entry, offset] = state[slot].to(snapshots_NWHKV.dtype)
    return o_THD


def _keep_row(
    ring: ReplayRing,
    slot_R: Tensor,
    ring_R: Tensor,
    offset: int,
    inputs: tuple[Tensor, Tensor, Tensor],
    weights: tuple[Tensor, Tensor, Tensor],
    conv_SHCDW: Tensor,
    lower_bound: float,
) -> None:
    heads, parts, head_dim = conv_SHCDW.shape[1:4]
    weight_X4, A_log_H, dt_bias_HD = weights
    for row, (slot, entry) in enumerate(zip(slot_R.tolist(), ring_R.tolist(), strict=True)):
        if slot == 0:
            continue
        x, f, b = (part[row].double() for part in inputs)
        window = torch.cat((conv_SHCDW[slot].permute(3, 1, 0, 2), x.view(1, parts, heads, head_dim)))
        u = torch.nn.functional.silu(
            torch.einsum("wchd,chdw->chd", window, weight_X4.double().view(parts, heads, head_dim, 4))
        )
        rate = A_log_H.double().exp()[:, None]
        ring.x_NWX[entry, offset] = x.to(ring.x_NWX.dtype)
        ring.k_NWHD[entry, offset] = u[1].to(ring.k_NWHD.dtype)
        ring.v_NWHD[entry, offset] = u[2].to(ring.v_NWHD.dtype)
        ring.g_NWHD[entry, offset] = lower_bound * torch.sigmoid(rate * (f + dt_bias_HD.double().view_as(f)))
        ring.beta_NWH[entry, offset] = b.sigmoid()
