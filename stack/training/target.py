"""The target over whole sequences, differentiable: the same equations as the engine's forward, without its memory.

B sequences, T tokens, N streams, C channels, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn import functional

from stack.training.blocks import coefficients, dense_mlp, mixture, read, rms_norm, write
from stack.training.mixers import linear_attention, sparse_attention
from stack.training.parameters import Scope, Tensors


@dataclass(frozen=True, slots=True)
class Passed:
    """What a forward leaves behind."""

    hidden: Tensor
    """[B, T, C] behind the last norm: the head's and the MTP layer's input."""
    taps: list[Tensor]
    """Each tapped layer's completed output, averaged over the streams, in the order asked for."""
    index_losses: list[Tensor] = field(default_factory=list)
    """One a sparse-attention layer."""
    copy_losses: list[Tensor] = field(default_factory=list)
    """Of the first sparse-attention layer, where sources were given."""
    loads: dict[str, Tensor] = field(default_factory=dict)
    """Prefix of each mixture of experts -> rows that chose each expert."""


def target_forward(
    tokens: Tensor,
    tensors: Tensors,
    config: dict[str, Any],
    *,
    is_sparse: bool,
    taps: Sequence[int] = (),
    sources: Tensor | None = None,
) -> Passed:
    """Run token ids [B, T], each sequence from its first token; `sources` are those of `copying`."""
    embedded = functional.embedding(tokens, tensors["embed_tokens.weight"])
    streams = embedded[..., None, :].expand(*embedded.shape[:-1], config["hc_mult"], -1)
    tapped: dict[int, Tensor] = {}
    passed = Passed(embedded, [])
    for layer in range(config["num_hidden_layers"]):
        streams = _layer(streams, layer, tensors, config, is_sparse, sources, passed)
        if layer in taps:
            tapped[layer] = streams.mean(-2)
    hidden = rms_norm(streams.mean(-2), tensors["norm.weight"], config["rms_norm_eps"])
    return dataclasses.replace(passed, hidden=hidden, taps=[tapped[layer] for layer in taps])


def logits_of(hidden: Tensor, tensors: Tensors) -> Tensor:
    """FP32 logits [.., V]."""
    return functional.linear(hidden, tensors["lm_head.weight"]).float()


def _layer(
    streams: Tensor,
    layer: int,
    tensors: Tensors,
    config: dict[str, Any],
    is_sparse: bool,
    sources: Tensor | None,
    passed: Passed,
) -> Tensor:
    scope, eps = Scope(tensors, f"layers.{layer}."), config["rms_norm_eps"]
    c = coefficients(streams, scope, "attn", config)
    x = rms_norm(read(streams, c), scope["input_layernorm.weight"], eps)
    if config["layer_types"][layer] == "linear_attention":
        y = linear_attention(x, scope.within("self_attn."), config)
    else:
        mine = None if passed.copy_losses else sources
        attended = sparse_attention(x, scope.within("self_attn."), config, is_sparse=is_sparse, sources=mine)
        passed.index_losses.append(attended.index_loss)
        if attended.copy_loss is not None:
            passed.copy_losses.append(attended.copy_loss)
        y = attended.output
    streams = write(streams, c, y)
    c = coefficients(streams, scope, "ffn", config)
    x = rms_norm(read(streams, c), scope["post_attention_layernorm.weight"], eps)
    if config["mlp_layer_types"][layer] == "dense":
        return write(streams, c, dense_mlp(x, scope.within("mlp."), config["swiglu_limit"]))
    y, passed.loads[f"layers.{layer}.mlp."] = mixture(x, scope.within("mlp."), config)
    return write(streams, c, y)
