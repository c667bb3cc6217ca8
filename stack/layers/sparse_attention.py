"""Sparse attention (DSA): MLA without positions in its absorbed form, over the tokens that a pooled indexer selects.

T rows, C channels, H heads, K query width, L latent width, V value width, J index heads, D index width,
W selected tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from stack.core import ForwardContext, ModelGeometry
from stack.core.memory import PagedLayer
from stack.kernels.quantized import Fp8Weight, QuantizedRows
from stack.layers.ops import Ops
from stack.layers.projection import FusedProjection, Projection
from stack.layers.weights import Weights


@dataclass(frozen=True, slots=True)
class Indexer:
    """Which tokens each row attends to, and the pooled keys that later rows are scored against."""

    ops: Ops
    inputs: FusedProjection
    queries: Projection
    norm_weight_D: Tensor
    norm_bias_D: Tensor
    ape_KD: Tensor
    head_scale_1: Tensor
    """FP32, so that the head weights leave the product with it in FP32 too."""
    num_heads: int
    budget: int

    @classmethod
    def load(cls, ops: Ops, weights: Weights, prefix: str, geometry: ModelGeometry) -> "Indexer":
        """`prefix` ends in `indexer.`."""
        width, heads, head_dim = geometry.hidden_size, geometry.index_num_heads, geometry.index_head_dim
        names = ("wk.weight", "index_kpool_compress_gate", "weights_proj.weight")
        rows_of = dict(zip((f"{prefix}{name}" for name in names), (head_dim, head_dim, heads), strict=True))
        ape_KD = weights.tensor(f"{prefix}index_kpool_compress_ape", (geometry.index_kpool, head_dim), std=0.5)
        return cls(
            ops,
            FusedProjection.load(ops, weights, rows_of, width),
            Projection.load(ops, weights, f"{prefix}wq_b.weight", heads * head_dim, geometry.q_lora_rank),
            weights.tensor(f"{prefix}k_norm.weight", (head_dim,), mean=1.0),
            weights.tensor(f"{prefix}k_norm.bias", (head_dim,)),
            ape_KD,
            ape_KD.new_full((1,), heads**-0.5, dtype=torch.float32),
            heads,
            geometry.index_topk // geometry.index_kpool,
        )

    def write(self, x_TC: Tensor, ctx: ForwardContext, layer: PagedLayer) -> Tensor:
        """Store what these rows add to rings and pools; returns the rows' head weights [T, J]."""
        ik_TD, ig_TD, w_TJ = self.inputs(x_TC)
        self.ops.index_write(
            ik_TD,
            ig_TD,
            self.norm_weight_D,
            self.norm_bias_D,
            self.ape_KD,
            layer.tail_SR2D,
            layer.codes_NQD,
            layer.scale_NQ,
            ctx.page_table_SP,
            ctx.slot_R,
            ctx.request_T,
            ctx.position_T,
            ctx.start_R1,
            ctx.write_T,
        )
        return w_TJ * self.head_scale_1

    def select(
        self, qr_TQ: Tensor, w_TJ: Tensor, ctx: ForwardContext, layer: PagedLayer, workspace_bytes: int
    ) -> Tensor:
        """Token slots int32 [T, W] of each row's set, -1 padded."""
        return self.ops.index_select(
            self.queries(qr_TQ).unflatten(-1, (self.num_heads, -1)),
            w_TJ,
            layer.codes_NQD,
            layer.scale_NQ,
            ctx.page_table_SP,
            ctx.slot_R,
            ctx.request_T,
            ctx.position_T,
            kpool=self.ape_KD.shape[0],
            budget=self.budget,
            max_context=ctx.max_context,
            workspace_bytes=workspace_bytes,
        )


@dataclass(frozen=True, slots=True)
class SparseAttention:
    """One DSA mixer. Keys and values are the same cached latent, so queries and outputs go through kv_b instead."""

    ops: Ops
    inputs: FusedProjection
    q_norm_Q: Tensor
    queries: Projection
    kv_norm_L: Tensor
    to_latent_HLK: Tensor
    from_latent_HVL: Tensor
    out: Projection
    indexer: Indexer
    norm_eps: float

    @classmethod
    def load(cls, ops: Ops, weights: Weights, prefix: str, geometry: ModelGeometry) -> "SparseAttention":
        """`prefix` ends in `self_attn.`."""
        g = geometry
        rows_of = {f"{prefix}q_a_proj.weight": g.q_lora_rank, f"{prefix}kv_a_proj_with_mqa.weight": g.kv_lora_rank}
        key_rows = g.num_heads * (g.qk_head_dim + g.v_head_dim)
        kv_b = weights.linear(f"{prefix}kv_b_proj.weight", key_rows, g.kv_lora_rank)
        if isinstance(kv_b, Fp8Weight):
            raise TypeError("kv_b_proj must be stored unquantised: queries are absorbed through it")
        keys_HKL, values_HVL = kv_b.unflatten(0, (g.num_heads, -1)).split((g.qk_head_dim, g.v_head_dim), 1)
        return cls(
            ops,
            FusedProjection.load(ops, weights, rows_of, g.hidden_size, quantized=True),
            weights.tensor(f"{prefix}q_a_layernorm.weight", (g.q_lora_rank,), mean=1.0),
            Projection.load(
                ops, weights, f"{prefix}q_b_proj.weight", g.num_heads * g.qk_head_dim, g.q_lora_rank, quantized=True
            ),
            weights.tensor(f"{prefix}kv_a_layernorm.weight", (g.kv_lora_rank,), mean=1.0),
            keys_HKL.transpose(1, 2).contiguous(),
            values_HVL.contiguous(),
            Projection.load(
                ops, weights, f"{prefix}o_proj.weight", g.hidden_size, g.num_heads * g.v_head_dim, quantized=True
            ),
            Indexer.load(ops, weights, f"{prefix}indexer.", geometry),
            g.rms_norm_eps,
        )

    @property
    def takes_quantized(self) -> bool:
        """Whether it multiplies quantised inputs."""
        return self.inputs.is_fp8

    def __call__(
        self,
        x_TC: Tensor,
        ctx: ForwardContext,
        layer: PagedLayer,
        workspace_bytes: int,
        index_TW: Tensor | None = None,
        rows: QuantizedRows | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Outputs [T, C] and the index set used. With `index_TW` that set is taken and the indexer does not run.
        `rows` are x quantised, where that is done."""
        linear_heads = self.ops.linear.function("linear_heads")
        q_TQ, kv_TL = self.inputs(x_TC, rows)
        qr_TQ, query_rows = self._query_rows(q_TQ)
        self.ops.latent_write(kv_TL, self.kv_norm_L, layer.latent_NPL, ctx.write_T, eps=self.norm_eps)
        if index_TW is None:
            w_TJ = self.indexer.write(x_TC, ctx, layer)
            index_TW = self.indexer.select(qr_TQ, w_TJ, ctx, layer, workspace_bytes)
        q_THK = self.queries(qr_TQ, query_rows).unflatten(-1, (self.to_latent_HLK.shape[0], -1))
        o_THL = self.ops.sparse_mla(
            linear_heads(q_THK, self.to_latent_HLK), layer.latent_NPL, index_TW, scale=q_THK.shape[-1] ** -0.5
        )
        values_THV = linear_heads(o_THL, self.from_latent_HVL, by_row=True)
        return self.out(values_THV.flatten(1)), index_TW

    def _query_rows(self, q_TQ: Tensor) -> tuple[Tensor, QuantizedRows | None]:
        """The normalised low-rank rows, and these quantised where the product with them takes that."""
        if not self.queries.is_fp8:
            return self.ops.rms_norm(q_TQ, self.q_norm_Q, eps=self.norm_eps), None
        both: tuple[Tensor, QuantizedRows] = self.ops.rms_norm.function("rms_norm_quant")(
            q_TQ, self.q_norm_Q, eps=self.norm_eps, quantize_rows=self.ops.quantize_rows
        )
        return both
