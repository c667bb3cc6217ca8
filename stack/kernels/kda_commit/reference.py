"""One request, layer and row at a time, in FP64."""

import torch
from torch import Tensor

from stack.core.memory import ReplayRing


def kda_commit(
    state_SHLKV: Tensor,
    conv_SHLCDW: Tensor,
    ring_all: ReplayRing,
    slot_R: Tensor,
    ring_R: Tensor,
    num_accepted_R: Tensor,
    *,
    snapshots_LNWHKV: Tensor | None = None,
) -> None:
    """Advance the states and windows of live slots by their accepted rows, in place."""
    heads, layers, parts, head_dim, kept = conv_SHLCDW.shape[1:]
    for slot, entry, accepted in zip(slot_R.tolist(), ring_R.tolist(), num_accepted_R.tolist(), strict=True):
        if slot == 0 or accepted == 0:
            continue
        for layer in range(layers):
            state, window = state_SHLKV[slot, :, layer].double(), conv_SHLCDW[slot, :, layer]
            for row in range(accepted):
                k, v, g = (
                    field[layer, entry, row].double() for field in (ring_all.k_NWHD, ring_all.v_NWHD, ring_all.g_NWHD)
                )
                k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
                state = state * g.exp()[..., None]
                u = ring_all.beta_NWH[layer, entry, row, :, None].double() * (v - torch.einsum("hkv,hk->hv", state, k))
                state = state + k[..., None] * u[:, None]
                x = ring_all.x_NWX[layer, entry, row].view(parts, heads, head_dim).transpose(0, 1)
                window = torch.cat((window, x[..., None].to(window.dtype)), -1)
            if snapshots_LNWHKV is not None:
                state = snapshots_LNWHKV[layer, entry, accepted - 1]
            state_SHLKV[slot, :, layer] = state.to(state_SHLKV.dtype)
            conv_SHLCDW[slot, :, layer] = window[..., -kept:]
