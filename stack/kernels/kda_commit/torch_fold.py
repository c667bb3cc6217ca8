"""Replay the accepted rows into all layers' states with the shared recurrent step (CPU).

S slots, H heads, L KDA layers, D = K = V widths, W = 3 kept inputs, N ring entries of w rows.
"""

import torch
from torch import Tensor

from stack.core.memory import ReplayRing
from stack.kernels.delta_rule import normalize, readers, step
from stack.kernels.kda_conv.torch_conv import read_windows, write_windows

_KEPT = 3


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
    per_request = zip(slot_R.tolist(), ring_R.tolist(), num_accepted_R.tolist(), strict=True)
    for slot, entry, accepted in per_request:
        if slot == 0 or accepted == 0:
            continue
        if snapshots_LNWHKV is None:
            _replay(state_SHLKV[slot], ring_all, entry, accepted)
        else:
            state_SHLKV[slot] = snapshots_LNWHKV[:, entry, accepted - 1].transpose(0, 1).to(state_SHLKV.dtype)
        _shift(conv_SHLCDW[slot], ring_all.x_NWX[:, entry, :accepted])


def _replay(state_HLKV: Tensor, ring: ReplayRing, entry: int, accepted: int) -> None:
    k, v, g = (field[:, entry, :accepted].float() for field in (ring.k_NWHD, ring.v_NWHD, ring.g_NWHD))
    k, decay = normalize(k), g.exp()
    beta = ring.beta_NWH[:, entry, :accepted, :, None].float()
    rows = (readers(k, k, decay), k[..., None], v, decay[..., None], beta)
    for layer, per_layer in enumerate(zip(*rows, strict=True)):
        work_HKV = state_HLKV[:, layer].to(torch.float32, copy=True)
        for row in zip(*per_layer, strict=True):
            step(work_HKV, *row)
        state_HLKV[:, layer] = work_HKV.to(state_HLKV.dtype)


def _shift(conv_HLCDW: Tensor, inputs_LAX: Tensor) -> None:
    windows_LHCDW = conv_HLCDW.transpose(0, 1).contiguous()
    joined = torch.cat((read_windows(windows_LHCDW), inputs_LAX.to(conv_HLCDW.dtype)), 1)
    write_windows(windows_LHCDW, joined[:, -_KEPT:])
    conv_HLCDW.copy_(windows_LHCDW.transpose(0, 1))
