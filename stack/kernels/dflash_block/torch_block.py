"""DFlash2's pieces over whole batches, on any device: no host synchronisation, fixed shapes, capturable.

A row's result depends on its own request alone: attention is one fixed-shape product per request.
"""

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
    """Normalise the heads by kind, then rotate all of them."""
    kinds = x_THD.split((num_queries, x_THD.shape[1] - num_queries), dim=1)
    normed = [
        norm(heads.reshape(-1, heads.shape[-1]), gain, eps=eps).view(heads.shape)
        for heads, gain in zip(kinds, gain_2D, strict=True)
        if heads.shape[1]
    ]
    return _rotated(torch.cat(normed, dim=1), position_T, theta)


def _rotated(x_THD: Tensor, position_T: Tensor, theta: float) -> Tensor:
    """Rotate each pair (i, i + D/2) of every head by its angle."""
    half = x_THD.shape[-1] // 2
    exponent = torch.arange(half, device=x_THD.device, dtype=torch.float32) / half
    angle = position_T.float()[:, None] * torch.pow(torch.full_like(exponent, theta), -exponent)
    cos, sin = torch.cos(angle)[:, None], torch.sin(angle)[:, None]
    a, b = x_THD.float().split(half, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x_THD.dtype)


def dynamic_conv(y_BWC: Tensor, base_2C: Tensor, dynamic_BW2N: Tensor) -> Tensor:
    """Two taps along the block."""
    y, size = y_BWC.float(), y_BWC.shape[-1] // dynamic_BW2N.shape[-1]
    tap = base_2C.float() + dynamic_BW2N.float().repeat_interleave(size, dim=-1)
    out = tap[:, :, 0] * y
    out[:, 1:] += tap[:, 1:, 1] * y[:, :-1]
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
    batch, width, heads, dim = q_BWHD.shape
    num_kv = k_BWGD.shape[2]
    keys = torch.cat([pool_k_SPGD[first_BC, second_BC], k_BWGD], dim=1).float().transpose(1, 2)
    values = torch.cat([pool_v_SPGD[first_BC, second_BC], v_BWGD], dim=1).float().transpose(1, 2)
    q = q_BWHD.float().view(batch, width, num_kv, heads // num_kv, dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
    score = torch.matmul(q, keys.transpose(2, 3)) * scale
    oldest = position_BW[:, :, None] - (window - 1)
    seen = (context_position_BC[:, None] >= 0) & (context_position_BC[:, None] >= oldest)
    seen = torch.cat([seen, seen.new_ones(batch, width, width)], dim=2)
    mask = seen[:, None, None].expand(batch, num_kv, heads // num_kv, width, -1).flatten(2, 3)
    p = torch.softmax(score.masked_fill(~mask, float("-inf")), dim=-1)
    out = torch.matmul(p, values.masked_fill(~seen.any(dim=1)[:, None, :, None], 0.0))
    out = out.view(batch, num_kv, heads // num_kv, width, dim).permute(0, 3, 1, 2, 4)
    return out.reshape(batch, width, heads, dim).to(q_BWHD.dtype)


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
    """Choose slot after slot, each given the one before; the loop is over the few slots alone."""
    greedy = (temperature_B == 0)[:, None]
    heat = torch.where(temperature_B == 0, torch.ones_like(temperature_B), temperature_B)[:, None]
    previous, tokens, probs = anchor_B.long(), [], []
    for e in range(unary_BEK.shape[1]):
        pair = predecessor_VR[previous].float() * z_BER[:, e].float()
        score = unary_BEK[:, e].float() + (successor_VR[ids_BEK[:, e]].float() * pair[:, None]).sum(dim=-1)
        best = torch.argmax(score, dim=-1)
        q = torch.softmax(score / heat, dim=-1)
        total = torch.cumsum(q, dim=-1)
        drawn = (total <= uniform_BE[:, e, None] * total[:, -1:]).sum(dim=-1).clamp(max=score.shape[-1] - 1)
        chosen = torch.where(greedy[:, 0], best, drawn)
        one_hot = torch.nn.functional.one_hot(best, score.shape[-1]).to(q.dtype)
        probs.append(torch.where(greedy, one_hot, q))
        previous = ids_BEK[:, e].gather(1, chosen[:, None])[:, 0].long()
        tokens.append(previous)
    return torch.stack(tokens, dim=1).to(ids_BEK.dtype), torch.stack(probs, dim=1)
