"""DFlash2's pieces, one request and one row at a time: the judge. Knows the formulas of the contract alone."""

from collections.abc import Callable

import torch
from torch import Tensor


def norm_rope(
    x_THD: Tensor,
    gain_2D: Tensor,
    position_T: Tensor,
    *,
    num_queries: int,
    eps: float,
    theta: float,
    norm: Callable[..., Tensor],
) -> Tensor:
    """Normalise each head by its gain, then rotate each pair (i, i + D/2) by its angle. Leaves `norm` alone."""
    half, out = x_THD.shape[-1] // 2, torch.empty_like(x_THD, dtype=torch.float32)
    for h in range(x_THD.shape[1]):
        gain = gain_2D[0 if h < num_queries else 1].double()
        x = x_THD[:, h].double()
        x = (gain * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()).to(x_THD.dtype).double()
        for i in range(half):
            angle = position_T.double() * theta ** (-i / half)
            a, b = x[:, i], x[:, i + half]
            out[:, h, i] = a * torch.cos(angle) - b * torch.sin(angle)
            out[:, h, i + half] = b * torch.cos(angle) + a * torch.sin(angle)
    return out.to(x_THD.dtype)


def dynamic_conv(y_BWC: Tensor, base_2C: Tensor, dynamic_BW2N: Tensor) -> Tensor:
    """Two taps along the block."""
    out, size = torch.empty_like(y_BWC, dtype=torch.float32), y_BWC.shape[-1] // dynamic_BW2N.shape[-1]
    for t in range(y_BWC.shape[1]):
        tap = base_2C.float() + dynamic_BW2N[:, t].float().repeat_interleave(size, dim=-1)
        out[:, t] = tap[:, 0] * y_BWC[:, t].float()
        if t > 0:
            out[:, t] += tap[:, 1] * y_BWC[:, t - 1].float()
    return out.to(y_BWC.dtype)


def block_attention(
    q_BWHD: Tensor,
    k_BWGD: Tensor,
    v_BWGD: Tensor,
    pool_k_SPGD: Tensor,
    pool_v_SPGD: Tensor,
    first_BC: Tensor,
    second_BC: Tensor,
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
                keys = torch.cat([pool_k_SPGD[first_BC[b, seen], second_BC[b, seen], g], k_BWGD[b, :, g]]).float()
                values = torch.cat([pool_v_SPGD[first_BC[b, seen], second_BC[b, seen], g], v_BWGD[b, :, g]]).float()
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
