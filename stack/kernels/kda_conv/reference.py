"""One request and one token at a time."""

import torch
from torch import Tensor


def kda_conv(
    x_TX: Tensor,
    weight_X4: Tensor,
    conv_SHCDW: Tensor,
    slot_R: Tensor,
    start_R1: Tensor,
    request_T: Tensor,
    position_T: Tensor,
    has_state_R: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised q and k, and v [T, H, D]; the windows of live slots advance."""
    num_rows, (heads, parts, head_dim) = x_TX.shape[0], conv_SHCDW.shape[1:4]
    u = torch.zeros(num_rows, parts, heads, head_dim, dtype=torch.float32, device=x_TX.device)
    weight = weight_X4.float().view(parts, heads, head_dim, 4)
    for request, slot in enumerate(slot_R.tolist()):
        if slot == 0:
            continue
        window = conv_SHCDW[slot].permute(3, 1, 0, 2).float()
        if not has_state_R[request]:
            window = torch.zeros_like(window)
        for row in range(int(start_R1[request]), int(start_R1[request + 1])):
            window = torch.cat((window, x_TX[row].float().view(1, parts, heads, head_dim)))
            u[row] = torch.nn.functional.silu(torch.einsum("wchd,chdw->chd", window, weight))
            window = window[1:]
        conv_SHCDW[slot] = window.permute(2, 1, 3, 0).to(conv_SHCDW.dtype)
    q, k, v = u.to(x_TX.dtype).float().unbind(1)
    q = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt() * head_dim**-0.5
    k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    return q.to(x_TX.dtype), k.to(x_TX.dtype), v.to(x_TX.dtype)
