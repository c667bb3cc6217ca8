"""Trainable tensors by their checkpoint names, and how they begin. Experts of a layer are stacked while they train.

Names are relative (`layers.0.self_attn.q_proj.weight`). All master weights are FP32.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Scope:
    """The tensors whose names begin with `prefix`, by the rest of their names."""

    tensors: Mapping[str, Tensor]
    prefix: str = ""

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.prefix + name]

    def within(self, prefix: str) -> "Scope":
        """A narrower scope."""
        return Scope(self.tensors, self.prefix + prefix)


def target_tensors(config: Mapping[str, Any], seed: int) -> Tensors:
    """Embedding, layers, norm and head of the target."""
    draw = torch.Generator().manual_seed(seed)
    vocab, width = config["vocab_size"], config["hidden_size"]
    tensors = {
        "embed_tokens.weight": _normal(draw, vocab, width, std=0.5),
        "norm.weight": torch.ones(width),
        "lm_head.weight": _linear(draw, vocab, width, gain=0.5),
    }
    for layer, kind in enumerate(config["layer_types"]):
        mixer = _kda(draw, config) if kind == "linear_attention" else _dsa(draw, config)
        mlp = _dense(draw, config) if config["mlp_layer_types"][layer] == "dense" else _moe(draw, config)
        parts = mixer | mlp | _norms(width) | _streams(draw, config)
        tensors |= {f"layers.{layer}.{name}": tensor for name, tensor in parts.items()}
    return tensors


def mtp_tensors(config: Mapping[str, Any], seed: int) -> Tensors:
    """The MTP layer, stored as one more decoder layer."""
    draw, width = torch.Generator().manual_seed(seed), config["hidden_size"]
    parts = _dsa(draw, config) | _moe(draw, config) | _norms(width)
    parts |= {f"{name}.weight": torch.ones(width) for name in ("enorm", "hnorm", "shared_head.norm")}
    parts["eh_proj.weight"] = _linear(draw, width, 2 * width)
    return {f"layers.{config['num_hidden_layers']}.{name}": tensor for name, tensor in parts.items()}


def draft_tensors(config: Mapping[str, Any], target_width: int, seed: int) -> Tensors:
    """The DFlash2 draft. Convolutions begin as the identity, so that the block begins as a plain transformer."""
    draw, options = torch.Generator().manual_seed(seed), config["dflash_config"]
    width, rank, vocab = config["hidden_size"], options["selector_rank"], config["vocab_size"]
    tensors = {
        "fc.weight": _linear(draw, width, len(options["target_layer_ids"]) * target_width),
        "hidden_norm.weight": torch.ones(width),
        "norm.weight": torch.ones(width),
        "candidate_selector.predecessor_codebook": _normal(draw, vocab, rank, std=0.3),
        "candidate_selector.successor_codebook": _normal(draw, vocab, rank, std=0.3),
        "candidate_selector.hidden_projection.weight": _linear(draw, rank, width),
    }
    for layer in range(config["num_hidden_layers"]):
        tensors |= {f"layers.{layer}.{name}": tensor for name, tensor in _draft_layer(draw, config).items()}
    return tensors


def _draft_layer(draw: torch.Generator, config: Mapping[str, Any]) -> Tensors:
    width, dim, inner = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    tensors = _norms(width) | {
        "self_attn.q_proj.weight": _linear(draw, heads, width),
        "self_attn.k_proj.weight": _linear(draw, kv_heads, width),
        "self_attn.v_proj.weight": _linear(draw, kv_heads, width),
        "self_attn.o_proj.weight": _linear(draw, width, heads, gain=0.5),
        "self_attn.q_norm.weight": torch.ones(dim),
        "self_attn.k_norm.weight": torch.ones(dim),
        "mlp.gate_proj.weight": _linear(draw, inner, width),
        "mlp.up_proj.weight": _linear(draw, inner, width),
        "mlp.down_proj.weight": _linear(draw, width, inner, gain=0.5),
    }
    groups = width // config["dflash_config"]["conv_group_size"]
    identity = torch.tensor([1.0, 0.0])[None, :, None].expand(2, 2, width).clone()
    for place in ("attention_conv", "mlp_conv"):
        tensors[f"{place}.base_kernel"] = identity.clone()
        tensors[f"{place}.kernel_projection.weight"] = _linear(draw, 4 * groups, width, gain=0.1)
    return tensors


def _kda(draw: torch.Generator, config: Mapping[str, Any]) -> Tensors:
    """Decays begin between about 0.5 and 700 tokens, so that some channels remember."""
    linear, width = config["linear_attn_config"], config["hidden_size"]
    heads, dim = linear["num_heads"], linear["head_dim"]
    inner, taps = heads * dim, linear["short_conv_kernel_size"]
    tensors = {f"{part}_proj.weight": _linear(draw, inner, width) for part in "qkv"}
    tensors |= {f"{part}_conv1d.weight": _uniform(draw, inner, 1, taps, low=-0.5, high=0.5) for part in "qkv"}
    for gate in "fg":
        tensors[f"{gate}_a_proj.weight"] = _linear(draw, dim, width)
        tensors[f"{gate}_b_proj.weight"] = _linear(draw, inner, dim, gain=0.5)
    tensors |= {
        "b_proj.weight": _linear(draw, heads, width),
        "A_log": torch.zeros(heads),
        "dt_bias": _uniform(draw, inner, low=-8.0, high=-1.0),
        "o_norm.weight": torch.ones(dim),
        "o_proj.weight": _linear(draw, width, inner, gain=0.5),
    }
    return {f"self_attn.{name}": tensor for name, tensor in tensors.items()}


def _dsa(draw: torch.Generator, config: Mapping[str, Any]) -> Tensors:
    width, heads = config["hidden_size"], config["num_attention_heads"]
    rank, latent, index = config["q_lora_rank"], config["kv_lora_rank"], config["index_head_dim"]
    key, value = config["qk_nope_head_dim"], config["v_head_dim"]
    tensors = {
        "q_a_proj.weight": _linear(draw, rank, width),
        "q_a_layernorm.weight": torch.ones(rank),
        "q_b_proj.weight": _linear(draw, heads * key, rank),
        "kv_a_proj_with_mqa.weight": _linear(draw, latent, width),
        "kv_a_layernorm.weight": torch.ones(latent),
        "kv_b_proj.weight": _linear(draw, heads * (key + value), latent),
        "o_proj.weight": _linear(draw, width, heads * value, gain=0.5),
        "indexer.wq_b.weight": _linear(draw, config["index_n_heads"] * index, rank),
        "indexer.wk.weight": _linear(draw, index, width),
        "indexer.weights_proj.weight": _linear(draw, config["index_n_heads"], width),
        "indexer.k_norm.weight": torch.ones(index),
        "indexer.k_norm.bias": torch.zeros(index),
        "indexer.index_kpool_compress_gate": _linear(draw, index, width, gain=0.5),
        "indexer.index_kpool_compress_ape": _normal(draw, config["index_kpool"], index, std=0.1),
    }
    return {f"self_attn.{name}": tensor for name, tensor in tensors.items()}


def _dense(draw: torch.Generator, config: Mapping[str, Any]) -> Tensors:
    width, inner = config["hidden_size"], config["intermediate_size"]
    return {f"mlp.{name}": tensor for name, tensor in _swiglu(draw, width, inner).items()}


def _moe(draw: torch.Generator, config: Mapping[str, Any]) -> Tensors:
    width, inner, count = config["hidden_size"], config["moe_intermediate_size"], config["n_routed_experts"]
    shared = _swiglu(draw, width, inner * config["n_shared_experts"])
    return {f"mlp.shared_experts.{name}": tensor for name, tensor in shared.items()} | {
        "mlp.gate.weight": _linear(draw, count, width, gain=0.5),
        "mlp.gate.e_score_correction_bias": torch.zeros(count),
        "mlp.experts.gate_up": _normal(draw, count, 2 * inner, width, std=1 / math.sqrt(width)),
        "mlp.experts.down": _normal(draw, count, width, inner, std=0.5 / math.sqrt(inner)),
    }


def _swiglu(draw: torch.Generator, width: int, inner: int) -> Tensors:
    return {
        "gate_proj.weight": _linear(draw, inner, width),
        "up_proj.weight": _linear(draw, inner, width),
        "down_proj.weight": _linear(draw, width, inner, gain=0.5),
    }


def _norms(width: int) -> Tensors:
    return {f"{name}.weight": torch.ones(width) for name in ("input_layernorm", "post_attention_layernorm")}


def _streams(draw: torch.Generator, config: Mapping[str, Any]) -> Tensors:
    """Reads begin as a mean of the streams, writes go to all, mixing is near the identity; noise tells them apart."""
    n, width = config["hc_mult"], config["hidden_size"]
    tensors = {}
    for site in ("attn", "ffn"):
        pre = _normal(draw, n, std=0.3) + math.log(1 / (n - 1))
        post, mix = _normal(draw, n, std=0.3), 4.0 * torch.eye(n).flatten()
        tensors[f"hc_{site}_fn"] = _normal(draw, (2 + n) * n, n * width, std=0.02)
        tensors[f"hc_{site}_base"] = torch.cat((pre, post, mix))
        tensors[f"hc_{site}_scale"] = torch.full((3,), 0.3)
    return tensors


def _normal(draw: torch.Generator, *shape: int, std: float) -> Tensor:
    return torch.randn(*shape, generator=draw) * std


def _uniform(draw: torch.Generator, *shape: int, low: float, high: float) -> Tensor:
    return torch.rand(*shape, generator=draw) * (high - low) + low


def _linear(draw: torch.Generator, rows: int, columns: int, gain: float = 1.0) -> Tensor:
    return _normal(draw, rows, columns, std=gain / math.sqrt(columns))
