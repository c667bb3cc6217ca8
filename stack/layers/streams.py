"""The residual streams between two sub-layers: one boundary op with its parameters.

T rows, N streams, C channels, M = 2N + N*N coefficients, D = N * C.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from stack.core import ModelGeometry
from stack.kernels.quantized import QuantizedRows
from stack.layers.ops import Ops
from stack.layers.weights import Weights


@dataclass(frozen=True, slots=True)
class Streams:
    """Residual streams, and the sub-layer output that is still to be written back into them."""

    X_TNC: Tensor
    y_TC: Tensor | None = None
    post_TN: Tensor | None = None
    comb_TNN: Tensor | None = None

    @classmethod
    def of(cls, embedded_TC: Tensor, num_streams: int) -> "Streams":
        """`num_streams` copies of the embedding."""
        return cls(embedded_TC[:, None].expand(-1, num_streams, -1).contiguous())

    def with_output(self, y_TC: Tensor) -> "Streams":
        """The same streams with a finished sub-layer's output pending."""
        return Streams(self.X_TNC, y_TC, self.post_TN, self.comb_TNN)


@dataclass(frozen=True, slots=True)
class Boundary:
    """What leads into one sub-layer: mHC parameters in FP32 and the norm behind them."""

    ops: Ops
    fn_MD: Tensor
    base_M: Tensor
    scale_3: Tensor
    norm_C: Tensor
    hc_eps: float
    norm_eps: float
    iters: int

    @classmethod
    def load(cls, ops: Ops, weights: Weights, site: str, norm: str, geometry: ModelGeometry) -> "Boundary":
        """`site` is the prefix of `_fn`, `_base` and `_scale`; `norm` the norm's full name."""
        n, width = geometry.num_streams, geometry.hidden_size
        num_coefficients = (2 + n) * n
        return cls(
            ops,
            weights.tensor(f"{site}_fn", (num_coefficients, n * width), std=0.02, dtype=torch.float32),
            weights.tensor(f"{site}_base", (num_coefficients,), std=0.5, dtype=torch.float32),
            weights.tensor(f"{site}_scale", (3,), mean=1.0, dtype=torch.float32),
            weights.tensor(norm, (width,), mean=1.0),
            geometry.hc_eps,
            geometry.rms_norm_eps,
            geometry.sinkhorn_iters,
        )

    def __call__(self, streams: Streams, *, quantizes: bool) -> tuple[Streams, Tensor, QuantizedRows | None]:
        """Streams with nothing pending (but with this boundary's coefficients), the sub-layer's input [T, C], and where
        it `quantizes` that input quantised, too."""
        arguments = (streams.y_TC, streams.X_TNC, streams.post_TN, streams.comb_TNN, self, self.norm_C)
        options = {"hc_eps": self.hc_eps, "norm_eps": self.norm_eps, "iters": self.iters}
        rows: QuantizedRows | None = None
        if quantizes:
            run = self.ops.mhc_boundary.function("mhc_boundary_quant")
            X_TNC, x_TC, post_TN, comb_TNN, rows = run(*arguments, **options, quantize_rows=self.ops.quantize_rows)
        else:
            X_TNC, x_TC, post_TN, comb_TNN = self.ops.mhc_boundary(*arguments, **options)
        return Streams(X_TNC, None, post_TN, comb_TNN), x_TC, rows


def settle(ops: Ops, streams: Streams) -> tuple[Streams, Tensor]:
    """Streams with the pending output written back, and their mean [T, C]: what a drafter taps."""
    X_TNC, mean_TC = ops.mhc_boundary.function("mhc_mean")(
        streams.y_TC, streams.X_TNC, streams.post_TN, streams.comb_TNN
    )
    return Streams(X_TNC), mean_TC


def finish(ops: Ops, streams: Streams, norm_C: Tensor, norm_eps: float) -> Tensor:
    """The normalised mean of the streams [T, C], the last output written back."""
    last_TC, _ = ops.mhc_boundary.function("mhc_final")(
        streams.y_TC, streams.X_TNC, streams.post_TN, streams.comb_TNN, norm_C, norm_eps=norm_eps
    )
    return last_TC
