"""The target model: embedding, decoder layers over residual streams, last norm, output head.

Knows no requests, no scheduling and no cache policy: rows come with a `ForwardContext`, memory is what `ModelMemory`
lends. A forward holds no host synchronisation and allocates by its own row count alone, so it can be captured.

T rows, C channels, V vocabulary, F tap features (C for each tapped layer).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from stack.core import ForwardContext, ModelGeometry
from stack.core.memory import ModelMemory
from stack.kernels.moe.routes import RouteRecorder
from stack.layers import Boundary, DenseMlp, LinearAttention, MixtureOfExperts, Ops, SparseAttention, Weights
from stack.layers.mlp import num_live_rows
from stack.layers.streams import Streams, finish, settle


@dataclass(frozen=True, slots=True)
class Hidden:
    """What a forward leaves behind."""

    last_TC: Tensor
    """Mean over the streams after the last layer, normalised: the head's and the MTP layer's input."""
    tap_TF: Tensor | None
    """Each tapped layer's completed output, averaged over the streams, side by side in the order asked for."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One mixer and one MLP, each behind its boundary. `memory_index` counts layers of the mixer's kind."""

    before_mixer: Boundary
    mixer: LinearAttention | SparseAttention
    before_mlp: Boundary
    mlp: DenseMlp | MixtureOfExperts
    memory_index: int

    @classmethod
    def load(cls, ops: Ops, weights: Weights, layer: int, geometry: ModelGeometry) -> "DecoderLayer":
        """Layer number `layer` of the checkpoint."""
        prefix, kind = f"layers.{layer}.", geometry.layer_kinds[layer]
        mixer = LinearAttention if kind == "kda" else SparseAttention
        mlp: DenseMlp | MixtureOfExperts
        if geometry.mlp_kinds[layer] == "dense":
            mlp = DenseMlp.load(ops, weights, f"{prefix}mlp.", geometry.dense_intermediate_size, geometry)
        else:
            mlp = MixtureOfExperts.load(ops, weights, f"{prefix}mlp.", geometry)
        return cls(
            Boundary.load(ops, weights, f"{prefix}hc_attn", f"{prefix}input_layernorm.weight", geometry),
            mixer.load(ops, weights, f"{prefix}self_attn.", geometry),
            Boundary.load(ops, weights, f"{prefix}hc_ffn", f"{prefix}post_attention_layernorm.weight", geometry),
            mlp,
            geometry.layer_kinds[:layer].count(kind),
        )

    def __call__(
        self,
        streams: Streams,
        ctx: ForwardContext,
        memory: ModelMemory,
        has_state_R: Tensor | None,
        num_rows: Tensor,
    ) -> Streams:
        """The streams behind this layer, its MLP's output pending."""
        streams, x_TC, rows = self.before_mixer(streams, quantizes=self.mixer.takes_quantized)
        if isinstance(self.mixer, LinearAttention):
            y_TC = self.mixer(x_TC, ctx, memory.kda[self.memory_index], has_state_R, rows)
        else:
            paged = memory.paged[self.memory_index]
            y_TC, _ = self.mixer(x_TC, ctx, paged, memory.index_workspace_bytes, rows=rows)
        streams, x_TC, rows = self.before_mlp(streams.with_output(y_TC), quantizes=self.mlp.takes_quantized)
        if isinstance(self.mlp, DenseMlp):
            return streams.with_output(self.mlp(x_TC, rows))
        return streams.with_output(self.mlp(x_TC, num_rows, rows))


class TargetModel:
    """All weights of the target, bound to their ops."""

    def __init__(self, geometry: ModelGeometry, ops: Ops, weights: Weights) -> None:
        vocab, width = geometry.vocab_size, geometry.hidden_size
        self.geometry = geometry
        self.ops = ops
        self.dtype = weights.dtype
        self.embed_VC = weights.tensor("embed_tokens.weight", (vocab, width), std=1.0)
        self.layers = tuple(DecoderLayer.load(ops, weights, i, geometry) for i in range(geometry.num_layers))
        self.norm_C = weights.tensor("norm.weight", (width,), mean=1.0)
        self.head_VC = weights.tensor("lm_head.weight", (vocab, width), std=width**-0.5)
        self._recorder: RouteRecorder | None = None

    def record_routes(self, recorder: RouteRecorder) -> None:
        """From now on `recorder` hears which experts every pass chooses."""
        self._recorder = recorder
        self.layers = tuple(
            replace(layer, mlp=replace(layer.mlp, record=partial(recorder.record, number)))
            if isinstance(layer.mlp, MixtureOfExperts)
            else layer
            for number, layer in enumerate(self.layers)
        )

    @property
    def impls(self) -> dict[str, str]:
        """Op -> the implementation that was bound."""
        return self.ops.impls

    @torch.no_grad()
    def forward(self, token_T: Tensor, ctx: ForwardContext, memory: ModelMemory, *, taps: Sequence[int] = ()) -> Hidden:
        """Run the rows `token_T` [T] through all layers, advancing caches and states; `taps` are layer numbers."""
        if self._recorder is not None:
            self._recorder.begin(ctx)
        has_state_R, num_rows = _resuming_requests(ctx), num_live_rows(ctx)
        streams = Streams.of(functional.embedding(token_T.long(), self.embed_VC), self.geometry.num_streams)
        tapped: dict[int, Tensor] = {}
        for number, layer in enumerate(self.layers):
            streams = layer(streams, ctx, memory, has_state_R, num_rows)
            if number in taps:
                streams, tapped[number] = settle(self.ops, streams)
        last_TC = finish(self.ops, streams, self.norm_C, self.geometry.rms_norm_eps)
        return Hidden(last_TC, torch.cat([tapped[number] for number in taps], -1) if taps else None)

    @torch.no_grad()
    def logits(self, hidden_RC: Tensor) -> Tensor:
        """FP32 logits [R, V] of normalised hidden rows."""
        return self.ops.linear(hidden_RC, self.head_VC, out_dtype=torch.float32)


def _resuming_requests(ctx: ForwardContext) -> Tensor | None:
    """bool [R]: requests whose slot holds an earlier pass's state; None outside prefill, where all do."""
    if ctx.kind != "prefill":
        return None
    first_R = ctx.start_R1[:-1].long().clamp_(max=ctx.num_rows - 1)
    return ctx.position_T.index_select(0, first_R) > 0
