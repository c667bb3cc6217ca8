"""The DFlash2 draft over many blocks at once, differentiable.

Context rows of all positions are projected from the target's taps; each block, a pending token and masks behind it,
reads its own window of them. The selector is trained over the whole vocabulary, of which the engine scores the best
few.

B sequences, T positions, A blocks of each, W rows of a block, H query heads, G key heads, D width, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stack.training.blocks import rms_norm, swiglu
from stack.training.parameters import Scope, Tensors


@dataclass(frozen=True, slots=True)
class Blocks:
    """What a block pass gives for slots 1 .. W - 1: hidden rows [B, A, W - 1, C] and FP32 head logits [.., V]."""

    hidden: Tensor
    logits: Tensor


def draft_blocks(
    tokens: Tensor,
    taps: list[Tensor],
    anchor_BA: Tensor,
    tensors: Tensors,
    config: dict[str, Any],
    embed_VC: Tensor,
    head_VC: Tensor,
) -> Blocks:
    """Draft behind the token at each position `anchor_BA` of `tokens` [B, T] from taps [B, T, C] of those before it."""
    options, eps = config["dflash_config"], config["rms_norm_eps"]
    width = options["block_size"]
    context = rms_norm(functional.linear(torch.cat(taps, -1), tensors["fc.weight"]), tensors["hidden_norm.weight"], eps)
    ids = torch.full((*anchor_BA.shape, width), options["mask_token_id"], device=tokens.device)
    ids[..., 0] = tokens.gather(1, anchor_BA)
    position_BAW = anchor_BA[..., None] + torch.arange(width, device=tokens.device)
    r = functional.embedding(ids, embed_VC)
    for layer in range(config["num_hidden_layers"]):
        scope = Scope(tensors, f"layers.{layer}.")
        r = r + _attend(r, context, anchor_BA, position_BAW, scope, config)
        r = r + _feed(r, scope, config)
    hidden = rms_norm(r, tensors["norm.weight"], eps)[:, :, 1:]
    return Blocks(hidden, functional.linear(hidden, head_VC).float())


def pair_scores(blocks: Blocks, previous: Tensor, tensors: Tensors) -> Tensor:
    """The selector's scores [B, A, W - 1, V] where `previous` [B, A, W - 1] was chosen one slot before."""
    selector = Scope(tensors, "candidate_selector.")
    z = functional.linear(blocks.hidden, selector["hidden_projection.weight"]).float()
    pair = selector["predecessor_codebook"][previous] * z
    return blocks.logits + functional.linear(pair, selector["successor_codebook"]).float()


def rope(x: Tensor, position: Tensor, theta: float) -> Tensor:
    """Rotate pairs (i, i + D/2) of [.., H, D]; `position` has the shape in front of the heads."""
    half = x.shape[-1] // 2
    rate = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = position[..., None, None].float() * rate
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def _attend(
    r: Tensor, context: Tensor, anchor_BA: Tensor, position_BAW: Tensor, scope: Scope, config: dict[str, Any]
) -> Tensor:
    heads, groups, window = config["num_attention_heads"], config["num_key_value_heads"], config["sliding_window"]
    eps, theta = config["rms_norm_eps"], float(config["rope_theta"])
    n = rms_norm(r, scope["input_layernorm.weight"], eps)
    first, second = _coefficients(n, scope.within("attention_conv."), config)
    a = _convolve(n, first)
    attention = scope.within("self_attn.")
    q = functional.linear(a, attention["q_proj.weight"]).unflatten(-1, (heads, -1))
    q = rope(rms_norm(q, attention["q_norm.weight"], eps), position_BAW, theta)
    own_k, own_v = _keys_values(a, position_BAW, attention, groups, eps, theta)
    all_positions = torch.arange(context.shape[1], device=r.device).expand(context.shape[:2])
    seen_k, seen_v = _keys_values(context, all_positions, attention, groups, eps, theta)
    back_BAK = anchor_BA[..., None] - torch.arange(window - 1, 0, -1, device=r.device)
    rows = torch.arange(context.shape[0], device=r.device)[:, None, None]
    keys = torch.cat((seen_k[rows, back_BAK.clamp(min=0)], own_k), 2)
    values = torch.cat((seen_v[rows, back_BAK.clamp(min=0)], own_v), 2)
    in_sight = (back_BAK >= 0)[:, :, None] & (back_BAK[:, :, None] > position_BAW[..., None] - window)
    mask = torch.cat((in_sight, in_sight.new_ones(*in_sight.shape[:3], r.shape[2])), -1)
    q = q.unflatten(-2, (groups, -1))
    scores = torch.einsum("bawghd,bakgd->baghwk", q, keys) * q.shape[-1] ** -0.5
    p = torch.softmax(scores.float().masked_fill(~mask[:, :, None, None], float("-inf")), -1)
    out = torch.einsum("baghwk,bakgd->bawghd", p.to(values.dtype), values).flatten(-3)
    return _convolve(functional.linear(out, attention["o_proj.weight"]), second)


def _keys_values(
    x: Tensor, position: Tensor, scope: Scope, groups: int, eps: float, theta: float
) -> tuple[Tensor, Tensor]:
    k, v = (functional.linear(x, scope[f"{part}_proj.weight"]).unflatten(-1, (groups, -1)) for part in "kv")
    return rope(rms_norm(k, scope["k_norm.weight"], eps), position, theta), v.float()


def _feed(r: Tensor, scope: Scope, config: dict[str, Any]) -> Tensor:
    n = rms_norm(r, scope["post_attention_layernorm.weight"], config["rms_norm_eps"])
    first, second = _coefficients(n, scope.within("mlp_conv."), config)
    m, mlp = _convolve(n, first), scope.within("mlp.")
    gate, up = functional.linear(m, mlp["gate_proj.weight"]), functional.linear(m, mlp["up_proj.weight"])
    return _convolve(functional.linear(swiglu(gate, up, None), mlp["down_proj.weight"]), second)


def _coefficients(n: Tensor, scope: Scope, config: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Taps [.., 2, C] of both sides."""
    size = config["dflash_config"]["conv_group_size"]
    moved = functional.linear(n, scope["kernel_projection.weight"]).float().unflatten(-1, (2, 2, -1))
    taps = scope["base_kernel"] + moved.repeat_interleave(size, dim=-1)
    return taps[..., 0, :, :], taps[..., 1, :, :]


def _convolve(y: Tensor, taps: Tensor) -> Tensor:
    """Two taps along the block [B, A, W, C]."""
    before = functional.pad(y, (0, 0, 1, 0))[:, :, :-1]
    return taps[..., 0, :] * y.float() + taps[..., 1, :] * before.float()
