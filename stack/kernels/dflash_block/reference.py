"""DFlash2's pieces, one request and one row at a time: the judge. Knows the formulas of the contract alone."""

import torch
from torch import Tensor


def rope(x_THD: Tensor, position_T: Tensor, *, theta: float) -> Tensor:
    """Rotate each pair (i, i + D/2) of every head by its angle."""
    half = x_THD.shape[-1] // 2
    out = torch.empty_like(x_THD, dtype=torch.float32)
    for t in range(x_THD.shape[0]):
        for i in range(half):
            angle = position_T[t].double() * theta ** (-i / half)
            a, b = x_THD[t, :, i].double(), x_THD[t, :, i + half].double()
            out[t, :, i] = a * torch.cos(angle) - b * torch.sin(angle)
            out[t, :, i + half] = b * torch.cos(angle) + a * torch.sin(angle)
    return out.to(x_THD.dtype)


def dynamic_conv(y_BWC: Tensor, coef_BW2C: Tensor) -> Tensor:
    """Two taps along the block."""
    out = torch.empty_like(y_BWC, dtype=torch.float32)
    for t in range(y_BWC.shape[1]):
        out[:, t] = coef_BW2C[:, t, 0].float() * y_BWC[:, t].float()
        if t > 0:
            out[:, t] += coef_BW2C[:, t, 1].float() * y_BWC[:, t - 1].float()
    return out.to(y_BWC.dtype)


def block_attention(
    q_BWHD: Tensor,
    k_BWGD: Tensor,
    v_BWGD: Tensor,
    context_k_BCGD: Tensor,
    context_v_BCGD: Tensor,
    context_position_BC: Tensor,
    position_BW: Tensor,
    *,
    window: int,
    scale: float,
) -> Tensor:
    """Attention of each row over its visible context and its whole block."""
    out = torch.empty_like(q_BWHD)
    group = q_BWHD.shape[2] // k_BWGD.shape[2]
    for b in range(q_BWHD.shape[0]):
        for w in range(q_BWHD.shape[1]):
            oldest = int(position_BW[b, w]) - window + 1
            seen = (context_position_BC[b] >= 0) & (context_position_BC[b] >= oldest)
            for h in range(q_BWHD.shape[2]):
                g = h // group
                keys = torch.cat([context_k_BCGD[b, seen, g], k_BWGD[b, :, g]]).float()
                values = torch.cat([context_v_BCGD[b, seen, g], v_BWGD[b, :, g]]).float()
                p = torch.softmax(keys @ q_BWHD[b, w, h].float() * scale, dim=0)
                out[b, w, h] = (p @ values).to(out.dtype)
    return out


def selector_walk(
    unary_BEK: Tensor,
    ids_BEK: Tensor,
    z_BER: Tensor,
    predecessor_VR: Tensor,
    successor_VR: Tensor,
    anchor_B: Tensor,
    temperature_B: Tensor,
    uniform_BE: Tensor,
) -> tuple[Tensor, Tensor]:
    """Choose slot after slot, each given the one before."""
    tokens, probs = torch.zeros_like(ids_BEK[..., 0]), torch.zeros_like(unary_BEK, dtype=torch.float32)
    for b in range(unary_BEK.shape[0]):
        previous = int(anchor_B[b])
        for e in range(unary_BEK.shape[1]):
            pair = predecessor_VR[previous].float() * z_BER[b, e].float()
            score = unary_BEK[b, e].float() + successor_VR[ids_BEK[b, e]].float() @ pair
            if temperature_B[b] == 0:
                chosen = int(torch.argmax(score))
                probs[b, e, chosen] = 1.0
            else:
                probs[b, e] = torch.softmax(score / temperature_B[b], dim=0)
                total = torch.cumsum(probs[b, e], dim=0)
                chosen = int((total <= uniform_BE[b, e] * total[-1]).sum().clamp(max=len(score) - 1))
            previous = int(ids_BEK[b, e, chosen])
            tokens[b, e] = previous
    return tokens, probs
