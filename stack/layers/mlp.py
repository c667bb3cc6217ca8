"""Clamped SwiGLU: the dense MLP, and routed experts beside a shared one.

T rows, C channels, I inner width, E experts, K choices.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stack.core import ForwardContext, ModelGeometry
from stack.kernels.quantized import QuantizedRows
from stack.layers.ops import Ops
from stack.layers.projection import FusedProjection, Projection
from stack.layers.weights import Experts, Weights


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """`down(swiglu(gate | up))`; FP8 weights take the fused activation and quantisation."""

    ops: Ops
    gate_up: FusedProjection
    down: Projection
    limit: float

    @classmethod
    def load(cls, ops: Ops, weights: Weights, prefix: str, inner: int, geometry: ModelGeometry) -> "DenseMlp":
        """`prefix` ends in `mlp.` or `shared_experts.`."""
        width = geometry.hidden_size
        rows_of = {f"{prefix}{name}_proj.weight": inner for name in ("gate", "up")}
        return cls(
            ops,
            FusedProjection.load(ops, weights, rows_of, width, quantized=True),
            Projection.load(ops, weights, f"{prefix}down_proj.weight", width, inner, quantized=True),
            geometry.swiglu_limit,
        )

    @property
    def takes_quantized(self) -> bool:
        """Whether it multiplies quantised inputs."""
        return self.gate_up.is_fp8

    @property
    def weights(self) -> Experts:
        """Its matrices, as an op takes them that runs it beside others. Raises ValueError where gate and up are not
        one."""
        return Experts(self.gate_up.weight, self.down.weight)

    def __call__(self, x_TC: Tensor, rows: QuantizedRows | None = None) -> Tensor:
        """Outputs [T, C]. `rows` are x quantised, where that is done."""
        gate_up_TI2 = self.gate_up.joined(x_TC, rows)
        if self.down.is_fp8:
            return self.down.of_quantized(self.ops.swiglu_quant(gate_up_TI2, limit=self.limit))
        return self.down(self.ops.swiglu(gate_up_TI2, limit=self.limit))


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """Top-k routed experts plus the shared expert, by one op."""

    ops: Ops
    router_EC: Tensor
    bias_E: Tensor
    experts: Experts
    shared: DenseMlp
    top_k: int
    scaling: float
    normalize: bool
    record: Callable[[Tensor], None] | None = None
    """Told the ids [T, K] that each pass chose, where routes are recorded."""

    @classmethod
    def load(cls, ops: Ops, weights: Weights, prefix: str, geometry: ModelGeometry) -> "MixtureOfExperts":
        """`prefix` ends in `mlp.`."""
        num_experts, width = geometry.num_experts, geometry.hidden_size
        return cls(
            ops,
            weights.tensor(f"{prefix}gate.weight", (num_experts, width), std=width**-0.5),
            weights.tensor(f"{prefix}gate.e_score_correction_bias", (num_experts,), dtype=torch.float32),
            weights.experts(f"{prefix}experts.", num_experts, geometry.expert_intermediate_size, width),
            DenseMlp.load(ops, weights, f"{prefix}shared_experts.", geometry.shared_intermediate_size, geometry),
            geometry.experts_per_token,
            geometry.routed_scaling_factor,
            geometry.norm_topk_prob,
        )

    @property
    def takes_quantized(self) -> bool:
        """Whether it multiplies quantised inputs."""
        return self.shared.takes_quantized

    def __call__(self, x_TC: Tensor, num_rows: Tensor, rows: QuantizedRows | None = None) -> Tensor:
        """Outputs [T, C]; rows from `num_rows` (int32 scalar tensor) on are padding and reach no routed expert. `rows`
        are x quantised, where that is done."""
        ids_TK, weights_TK = self.ops.router(
            x_TC,
            self.router_EC,
            self.bias_E,
            top_k=self.top_k,
            scaling=self.scaling,
            normalize=self.normalize,
            num_rows=num_rows,
        )
        if self.record is not None:
            self.record(ids_TK)
        y_TC: Tensor = self.ops.moe(
            x_TC, ids_TK, weights_TK, self.experts, limit=self.shared.limit, swiglu_quant=self.ops.swiglu_quant,
            shared=self.shared, rows=rows,
        )  # fmt: skip
        return y_TC


def num_live_rows(ctx: ForwardContext) -> Tensor:
    """int32 scalar: the rows in front of the padding. Live requests come first."""
    if ctx.kind != "prefill":
        return (ctx.slot_R > 0).sum(dtype=torch.int32) * ctx.width
    live = (ctx.slot_R.index_select(0, ctx.request_T) > 0).sum(dtype=torch.int32)
    return torch.minimum(ctx.start_R1[-1], live)
