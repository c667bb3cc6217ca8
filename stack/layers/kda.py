"""Linear attention (KDA): projections, short convolution, gated delta rule, gated norm.

T rows, C channels, N inner width, X = 3 * H * D convolution channels, H heads, D head width, R requests.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from stack.core import ForwardContext, ModelGeometry
from stack.core.memory import KdaLayer
from stack.kernels.quantized import Fp8Weight, QuantizedRows
from stack.layers.ops import Ops
from stack.layers.projection import FusedProjection, Projection
from stack.layers.weights import Weights


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """One KDA mixer. States are FP32 in arithmetic, whatever their slots hold."""

    ops: Ops
    inputs: FusedProjection
    gates_2NK: Tensor
    conv_X4: Tensor
    A_log_H: Tensor
    dt_bias_HD: Tensor
    norm_D: Tensor
    out: Projection
    head_dim: int
    lower_bound: float
    norm_eps: float

    @classmethod
    def load(cls, ops: Ops, weights: Weights, prefix: str, geometry: ModelGeometry) -> "LinearAttention":
        """`prefix` ends in `self_attn.`."""
        heads, head_dim, width = geometry.kda_num_heads, geometry.kda_head_dim, geometry.hidden_size
        inner = heads * head_dim
        low_rank = {f"{prefix}{name}_proj.weight": head_dim for name in ("f_a", "g_a")}
        rows_of = {f"{prefix}{name}_proj.weight": inner for name in ("q", "k", "v")}
        rows_of |= {f"{prefix}b_proj.weight": heads} | low_rank
        gates = [_plain(weights.linear(f"{prefix}{name}_proj.weight", inner, head_dim)) for name in ("f_b", "g_b")]
        taps = [
            weights.tensor(f"{prefix}{name}_conv1d.weight", (inner, 1, 4), std=0.5, dtype=torch.float32)
            for name in ("q", "k", "v")
        ]
        return cls(
            ops,
            FusedProjection.load(ops, weights, rows_of, width),
            torch.stack(gates),
            torch.cat(taps)[:, 0].contiguous(),
            weights.tensor(f"{prefix}A_log", (heads,), std=0.5, dtype=torch.float32),
            weights.tensor(f"{prefix}dt_bias", (inner,), mean=-2.0, std=1.0, dtype=torch.float32).view(heads, head_dim),
            weights.tensor(f"{prefix}o_norm.weight", (head_dim,), mean=1.0),
            Projection.load(ops, weights, f"{prefix}o_proj.weight", width, inner),
            head_dim,
            geometry.gate_lower_bound,
            geometry.rms_norm_eps,
        )

    @property
    def takes_quantized(self) -> bool:
        """Whether it multiplies quantised inputs; the release stores these weights unquantised."""
        return self.inputs.is_fp8

    def __call__(
        self,
        x_TC: Tensor,
        ctx: ForwardContext,
        layer: KdaLayer,
        has_state_R: Tensor | None,
        rows: QuantizedRows | None = None,
    ) -> Tensor:
        """Outputs [T, C]. `has_state_R` (bool, prefill only): requests whose slot holds an earlier pass's state.
        `rows` are x quantised, where that is done."""
        channels, heads = self.conv_X4.shape[0], self.A_log_H.shape[0]
        qkv_TX, b_TH, low_TN = self.inputs.joined(x_TC, rows).split((channels, heads, 2 * self.head_dim), -1)
        low_T2D = low_TN.unflatten(-1, (2, self.head_dim))
        f_TN, gate_TN = self.ops.linear.function("linear_heads")(low_T2D, self.gates_2NK).unbind(1)
        f_THD, gate_THD = (g.unflatten(-1, (-1, self.head_dim)) for g in (f_TN, gate_TN))
        o_THD = self._mix(qkv_TX, f_THD, b_TH, ctx, layer, has_state_R)
        return self.out(self.ops.gated_norm(o_THD, gate_THD, self.norm_D, eps=self.norm_eps))

    def _mix(
        self,
        x_TX: Tensor,
        f_THD: Tensor,
        b_TH: Tensor,
        ctx: ForwardContext,
        layer: KdaLayer,
        has_state_R: Tensor | None,
    ) -> Tensor:
        gates = (f_THD, b_TH)
        decay = (self.A_log_H, self.dt_bias_HD)
        memory = (layer.state_SHKV, layer.conv_SHCDW, ctx.slot_R)
        if ctx.kind == "decode":
            return self.ops.kda_decode(x_TX, *gates, self.conv_X4, *decay, *memory, lower_bound=self.lower_bound)
        if ctx.kind == "verify":
            return self.ops.kda_verify(
                x_TX,
                *gates,
                self.conv_X4,
                *decay,
                *memory,
                ctx.ring_R,
                layer.ring,
                width=ctx.width,
                lower_bound=self.lower_bound,
                snapshots_NWHKV=layer.snapshots_NWHKV,
            )
        packing = (ctx.slot_R, ctx.start_R1)
        q_THD, k_THD, v_THD = self.ops.kda_conv(
            x_TX, self.conv_X4, layer.conv_SHCDW, *packing, ctx.request_T, ctx.position_T, has_state_R
        )
        return self.ops.kda_chunk(
            q_THD,
            k_THD,
            v_THD,
            *gates,
            *decay,
            layer.state_SHKV,
            *packing,
            has_state_R,
            lower_bound=self.lower_bound,
            extend_lens=ctx.extend_lens,
        )


def _plain(weight: Tensor | Fp8Weight) -> Tensor:
    if isinstance(weight, Tensor):
        return weight
    raise TypeError("the low-rank gates of KDA are stored unquantised")
