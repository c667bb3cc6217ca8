"""The target one token at a time for many sequences in step: for generating text while training.

All sequences stand at the same position. The equations are those of the whole-sequence forward; a test holds the two
together.

B sequences, T tokens so far, C channels, H heads, D width.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stack.training.blocks import coefficients, dense_mlp, mixture, read, rms_norm, write
from stack.training.mixers import (
    attend,
    attention_inputs,
    convolved,
    gated_output,
    index_queries,
    index_rows,
    kda_gates,
    pooled_keys,
    split_qkv,
)
from stack.training.parameters import Scope, Tensors


@dataclass(slots=True)
class _Recurrent:
    window: Tensor
    state: Tensor


@dataclass(slots=True)
class _Paged:
    k: Tensor
    v: Tensor
    index_key: Tensor
    index_gate: Tensor


class Stepper:
    """Sequences that grow together, at most `capacity` tokens long."""

    def __init__(self, tensors: Tensors, config: dict[str, Any], batch: int, capacity: int) -> None:
        self._tensors, self._config = tensors, config
        self.position = 0
        device = tensors["norm.weight"].device
        self._memory = [self._empty(kind, batch, capacity, device) for kind in config["layer_types"]]

    @torch.no_grad()
    def step(self, tokens_B: Tensor) -> Tensor:
        """Enter one token of each sequence; returns the hidden [B, C] behind the last norm."""
        config, tensors = self._config, self._tensors
        embedded = functional.embedding(tokens_B[:, None], tensors["embed_tokens.weight"])
        streams = embedded[..., None, :].expand(-1, -1, config["hc_mult"], -1)
        for layer in range(config["num_hidden_layers"]):
            streams = self._layer(streams, layer)
        self.position += 1
        return rms_norm(streams.mean(-2), tensors["norm.weight"], config["rms_norm_eps"])[:, 0]

    def _layer(self, streams: Tensor, layer: int) -> Tensor:
        config, scope = self._config, Scope(self._tensors, f"layers.{layer}.")
        c, eps, memory = coefficients(streams, scope, "attn", config), config["rms_norm_eps"], self._memory[layer]
        x = rms_norm(read(streams, c), scope["input_layernorm.weight"], eps)
        mix = self._linear if isinstance(memory, _Recurrent) else self._sparse
        streams = write(streams, c, mix(x, scope.within("self_attn."), memory))
        c = coefficients(streams, scope, "ffn", config)
        x = rms_norm(read(streams, c), scope["post_attention_layernorm.weight"], eps)
        if config["mlp_layer_types"][layer] == "dense":
            return write(streams, c, dense_mlp(x, scope.within("mlp."), config["swiglu_limit"]))
        return write(streams, c, mixture(x, scope.within("mlp."), config)[0])

    def _linear(self, x: Tensor, scope: Scope, memory: Any) -> Tensor:
        heads = self._config["linear_attn_config"]["num_heads"]
        qkv = torch.cat([functional.linear(x, scope[f"{part}_proj.weight"]) for part in "qkv"], -1).float()
        window = torch.cat((memory.window, qkv), 1)
        memory.window = window[:, 1:]
        q, k, v = (part[:, 0] for part in split_qkv(convolved(window, scope), heads))
        g, beta = (part[:, 0] for part in kda_gates(x, scope, self._config))
        with torch.autocast(x.device.type, enabled=False):
            state = memory.state * g.exp()[..., None]
            u = beta[..., None] * (v - (k[..., None, :] @ state)[..., 0, :])
            memory.state = state + k[..., None] * u[..., None, :]
            o = (q[..., None, :] @ memory.state)[..., 0, :]
        gate = functional.linear(functional.linear(x, scope["g_a_proj.weight"]), scope["g_b_proj.weight"])
        return gated_output(o[:, None], gate.unflatten(-1, (heads, -1)), scope, self._config)

    def _sparse(self, x: Tensor, scope: Scope, memory: Any) -> Tensor:
        here, seen = self.position, slice(0, self.position + 1)
        qr, q, memory.k[:, here : here + 1], memory.v[:, here : here + 1] = attention_inputs(x, scope, self._config)
        indexer = scope.within("indexer.")
        memory.index_key[:, here : here + 1], memory.index_gate[:, here : here + 1] = index_rows(x, indexer)
        scores = torch.einsum("bthd,bshd->bhts", q, memory.k[:, seen].to(q.dtype)).float() * q.shape[-1] ** -0.5
        return attend(scores, self._visible(x, qr, indexer, memory), memory.v[:, seen], scope)

    def _visible(self, x: Tensor, qr: Tensor, indexer: Scope, memory: _Paged) -> Tensor:
        """Mask [B, 1, T] over the tokens so far."""
        count, kpool = self.position + 1, self._config["index_kpool"]
        mask = torch.ones(x.shape[0], 1, count, dtype=torch.bool, device=x.device)
        pools, budget = count // kpool, self._config["index_topk"] // kpool
        if pools <= budget:
            return mask
        keys = pooled_keys(memory.index_key[:, :count], memory.index_gate[:, :count], indexer)
        q, weight = index_queries(x, qr, indexer, self._config)
        with torch.autocast(x.device.type, enabled=False):
            hits = functional.relu(torch.einsum("btjd,bpd->btjp", q, keys) * q.shape[-1] ** -0.5)
            best = torch.topk((weight[..., None, :] @ hits)[..., 0, :], budget, -1).indices
        chosen = torch.zeros(x.shape[0], 1, pools, dtype=torch.bool, device=x.device).scatter_(-1, best, True)
        mask[..., : pools * kpool] = chosen.repeat_interleave(kpool, -1)
        return mask

    def _empty(self, kind: str, batch: int, capacity: int, device: torch.device) -> _Recurrent | _Paged:
        config = self._config
        linear, heads = config["linear_attn_config"], config["num_attention_heads"]
        if kind == "linear_attention":
            h, d = linear["num_heads"], linear["head_dim"]
            window, state = (batch, 3, 3 * h * d), (batch, h, d, d)
            return _Recurrent(torch.zeros(window, device=device), torch.zeros(state, device=device))
        widths = (heads, config["qk_nope_head_dim"]), (heads, config["v_head_dim"]), *[(config["index_head_dim"],)] * 2
        return _Paged(*(torch.zeros(batch, capacity, *width, device=device) for width in widths))
