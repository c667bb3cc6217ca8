"""The two token mixers over whole sequences: linear attention, and sparse attention with its indexer. Differentiable.

Which tokens the indexer selects has no gradient. It learns beside the model instead, as in DeepSeek-V3.2: its scores,
as a distribution over pools, are drawn to the attention's own distribution by a KL term, and its inputs are detached,
so that term moves the indexer alone. The attention's distribution is taken over everything visible, selected or not.

B sequences, T tokens, C channels, H heads, D head width, P pools, J index heads.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stack.training.blocks import rms_norm
from stack.training.copying import copy_loss
from stack.training.delta_rule import delta_rule
from stack.training.parameters import Scope

_NORM_EPS = 1e-6


def linear_attention(x: Tensor, scope: Scope, config: dict[str, Any]) -> Tensor:
    """KDA over whole sequences [B, T, C]."""
    heads, dim = config["linear_attn_config"]["num_heads"], config["linear_attn_config"]["head_dim"]
    qkv = torch.cat([functional.linear(x, scope[f"{part}_proj.weight"]) for part in "qkv"], -1).float()
    q, k, v = split_qkv(convolved(functional.pad(qkv, (0, 0, 3, 0)), scope), heads)
    g, beta = kda_gates(x, scope, config)
    with torch.autocast(x.device.type, enabled=False):
        o = delta_rule(q, k, v, g, beta)
    gate = functional.linear(functional.linear(x, scope["g_a_proj.weight"]), scope["g_b_proj.weight"])
    return gated_output(o, gate.unflatten(-1, (heads, dim)), scope, config)


def convolved(padded: Tensor, scope: Scope) -> Tensor:
    """SiLU of the four-tap sum; `padded` has three inputs more than outputs, in front."""
    weight = torch.cat([scope[f"{part}_conv1d.weight"] for part in "qkv"]).squeeze(1)
    count = padded.shape[1] - 3
    total = padded[:, :count] * weight[:, 0]
    for tap in range(1, 4):
        total = total + padded[:, tap : tap + count] * weight[:, tap]
    return functional.silu(total)


def split_qkv(u: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised q (scaled) and k, and v, each [B, T, H, D]."""
    q, k, v = (part.unflatten(-1, (heads, -1)) for part in u.chunk(3, -1))
    q, k = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + _NORM_EPS) for part in (q, k))
    return q * q.shape[-1] ** -0.5, k, v


def kda_gates(x: Tensor, scope: Scope, config: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Log decay [B, T, H, D] and beta [B, T, H] in FP32."""
    linear = config["linear_attn_config"]
    f = functional.linear(functional.linear(x, scope["f_a_proj.weight"]), scope["f_b_proj.weight"]).float()
    rate = scope["A_log"].exp()[:, None]
    g = linear["gate_lower_bound"] * torch.sigmoid(
        rate * (f + scope["dt_bias"]).unflatten(-1, (linear["num_heads"], -1))
    )
    return g, torch.sigmoid(functional.linear(x, scope["b_proj.weight"]).float())


def gated_output(o: Tensor, gate: Tensor, scope: Scope, config: dict[str, Any]) -> Tensor:
    """Gated norm per head, then the output projection."""
    y = rms_norm(o, scope["o_norm.weight"], config["rms_norm_eps"]) * torch.sigmoid(gate.float())
    return functional.linear(y.flatten(-2), scope["o_proj.weight"])


@dataclass(frozen=True, slots=True)
class Attended:
    """What sparse attention leaves: its output, losses of its own, and what later queries may attend to again."""

    output: Tensor
    index_loss: Tensor
    key_value: tuple[Tensor, Tensor]
    mask: Tensor
    copy_loss: Tensor | None = None


def sparse_attention(
    x: Tensor, scope: Scope, config: dict[str, Any], *, is_sparse: bool, sources: Tensor | None = None
) -> Attended:
    """DSA over whole sequences [B, T, C]; without `is_sparse` attention is dense and the indexer only learns.

    `sources` [B, T, T] are where the first head should look: whatever is selected, as with the indexer's loss.
    """
    qr, q, k, v = attention_inputs(x, scope, config)
    scores = torch.einsum("bthd,bshd->bhts", q, k).float() * q.shape[-1] ** -0.5
    length = x.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
    scores = scores.masked_fill(~causal, float("-inf"))
    pool_scores = index_scores(x.detach(), qr.detach(), scope.within("indexer."), config)
    loss = index_loss(pool_scores, scores.detach(), config)
    mask = selected(pool_scores.detach(), length, config) if is_sparse else causal[None].expand(x.shape[0], -1, -1)
    copied = None if sources is None else copy_loss(scores[:, 0], sources)
    return Attended(attend(scores, mask, v, scope), loss, (k, v), mask, copied)


def attention_inputs(x: Tensor, scope: Scope, config: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The query residual [B, T, Q], and q, k, v [B, T, H, D]."""
    eps, heads = config["rms_norm_eps"], config["num_attention_heads"]
    qr = rms_norm(functional.linear(x, scope["q_a_proj.weight"]), scope["q_a_layernorm.weight"], eps)
    latent = rms_norm(functional.linear(x, scope["kv_a_proj_with_mqa.weight"]), scope["kv_a_layernorm.weight"], eps)
    q = functional.linear(qr, scope["q_b_proj.weight"]).unflatten(-1, (heads, -1))
    kv = functional.linear(latent, scope["kv_b_proj.weight"]).unflatten(-1, (heads, -1))
    k, v = kv.split((config["qk_nope_head_dim"], config["v_head_dim"]), -1)
    return qr, q, k, v


def attend(scores: Tensor, mask: Tensor, v: Tensor, scope: Scope) -> Tensor:
    """Output [B, T, C] of attention scores [B, H, T, S] under a mask [B, T, S]."""
    p = torch.softmax(scores.masked_fill(~mask[:, None], float("-inf")), -1)
    return functional.linear(torch.einsum("bhts,bshd->bthd", p.to(v.dtype), v).flatten(-2), scope["o_proj.weight"])


def index_rows(x: Tensor, scope: Scope) -> tuple[Tensor, Tensor]:
    """What each token leaves for pooling: its normalised key and its gate, [B, T, D]."""
    key = functional.linear(x, scope["wk.weight"]).float()
    key = functional.layer_norm(key, key.shape[-1:], scope["k_norm.weight"], scope["k_norm.bias"], 1e-6)
    return key, functional.linear(x, scope["index_kpool_compress_gate"]).float()


def pooled_keys(key: Tensor, gate: Tensor, scope: Scope) -> Tensor:
    """Keys of all complete pools [B, P, D]."""
    ape = scope["index_kpool_compress_ape"]
    whole = key.shape[1] // ape.shape[0] * ape.shape[0]
    key, gate = (rows[:, :whole].unflatten(1, (-1, ape.shape[0])) for rows in (key, gate))
    return (torch.softmax(gate + ape, 2) * key).sum(2)


def index_queries(x: Tensor, qr: Tensor, scope: Scope, config: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Index queries [B, T, J, D] and head weights [B, T, J]."""
    heads = config["index_n_heads"]
    q = functional.linear(qr, scope["wq_b.weight"]).unflatten(-1, (heads, -1)).float()
    return q, functional.linear(x, scope["weights_proj.weight"]).float() * heads**-0.5


def index_scores(x: Tensor, qr: Tensor, scope: Scope, config: dict[str, Any]) -> Tensor:
    """Score of every complete pool for every query [B, T, P]; -inf for pools that the query does not see whole."""
    keys = pooled_keys(*index_rows(x, scope), scope)
    q, weight = index_queries(x, qr, scope, config)
    with torch.autocast(x.device.type, enabled=False):
        hits = functional.relu(torch.einsum("btjd,bpd->btjp", q, keys) * q.shape[-1] ** -0.5)
        scores = (weight[..., None, :] @ hits).squeeze(-2)
    return scores.masked_fill(~_seen_whole(x.shape[1], keys.shape[1], config, x.device), float("-inf"))


def index_loss(pool_scores: Tensor, scores: Tensor, config: dict[str, Any]) -> Tensor:
    """Mean KL of the indexer's distribution over pools from the attention's, over queries that see a pool."""
    kpool, pools = config["index_kpool"], pool_scores.shape[-1]
    if pools == 0:
        return scores.new_zeros(())
    first = kpool - 1
    share = torch.softmax(scores[:, :, first:], -1).mean(1)[..., : pools * kpool].unflatten(-1, (pools, kpool)).sum(-1)
    seen = torch.isfinite(pool_scores[:, first:])
    share = share * seen
    share = share / share.sum(-1, keepdim=True).clamp(min=1e-9)
    log_index = torch.log_softmax(pool_scores[:, first:], -1).masked_fill(~seen, 0.0)
    return (share * (share.clamp(min=1e-9).log() - log_index)).sum(-1).mean()


def selected(pool_scores: Tensor, length: int, config: dict[str, Any]) -> Tensor:
    """The mask [B, T, T] of the best pools' tokens and of the open tail."""
    kpool, pools = config["index_kpool"], pool_scores.shape[-1]
    position = torch.arange(length, device=pool_scores.device)
    own_pool = (position[:, None] + 1) // kpool * kpool
    tail = (position[None] >= own_pool) & (position[None] <= position[:, None])
    mask = tail.expand(pool_scores.shape[0], -1, -1).clone()
    if pools:
        best = torch.topk(pool_scores, min(config["index_topk"] // kpool, pools), -1).indices
        chosen = torch.zeros_like(pool_scores, dtype=torch.bool).scatter_(-1, best, True)
        chosen &= torch.isfinite(pool_scores)
        mask[..., : pools * kpool] |= chosen.repeat_interleave(kpool, -1)
    return mask


def _seen_whole(length: int, pools: int, config: dict[str, Any], device: torch.device) -> Tensor:
    last = (torch.arange(pools, device=device) + 1) * config["index_kpool"] - 1
    return last[None] <= torch.arange(length, device=device)[:, None]
