"""The recurrence, one request, one token at a time, in FP64."""

import torch
from torch import Tensor


def kda_chunk(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    f_THD: Tensor,
    b_TH: Tensor,
    A_log_H: Tensor,
    dt_bias_HD: Tensor,
    state_SHKV: Tensor,
    slot_R: Tensor,
    start_R1: Tensor,
    has_state_R: Tensor,
    *,
    lower_bound: float,
    extend_lens: tuple[int, ...],
) -> Tensor:
    """Outputs [T, H, D] in v's dtype; the states of live slots advance by their requests' rows."""
    q, k, v = q_THD.double(), k_THD.double(), v_THD.double()
    rate = A_log_H.double().exp()[:, None]
    g = lower_bound * torch.sigmoid(rate * (f_THD.double() + dt_bias_HD.double().view_as(f_THD[0])))
    beta = b_TH.double().sigmoid()
    o = torch.zeros_like(v)
    for request, slot in enumerate(slot_R.tolist()):
        if slot == 0:
            continue
        state = state_SHKV[slot].double() if has_state_R[request] else torch.zeros_like(state_SHKV[slot]).double()
        for t in range(int(start_R1[request]), int(start_R1[request + 1])):
            state = state * g[t].exp()[..., None]
            u = beta[t][:, None] * (v[t] - torch.einsum("hkv,hk->hv", state, k[t]))
            state = state + k[t][..., None] * u[:, None]
            o[t] = torch.einsum("hkv,hk->hv", state, q[t])
        state_SHKV[slot] = state.to(state_SHKV.dtype)
    return o.to(v_THD.dtype)
