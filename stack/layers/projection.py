"""A linear map without bias, in the arithmetic that its weight was stored in; several of one input fused.

T rows, K inputs, N outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stack.kernels.quantized import GROUP, Fp8Weight, QuantizedRows
from stack.layers.ops import Ops
from stack.layers.weights import Weights


@dataclass(frozen=True, slots=True)
class Projection:
    """`y = x @ weight.T`; an FP8 weight makes it quantise its input rows first."""

    ops: Ops
    weight: Tensor | Fp8Weight
    dtype: torch.dtype

    @classmethod
    def load(
        cls, ops: Ops, weights: Weights, name: str, rows: int, inputs: int, *, quantized: bool = False
    ) -> "Projection":
        """The matrix `name` [rows, inputs]."""
        return cls(ops, weights.linear(name, rows, inputs, quantized=quantized), weights.dtype)

    @property
    def is_fp8(self) -> bool:
        """Whether it multiplies quantised inputs."""
        return isinstance(self.weight, Fp8Weight)

    def __call__(
        self, x_TK: Tensor, rows: QuantizedRows | None = None, *, out_dtype: torch.dtype | None = None
    ) -> Tensor:
        """Outputs [T, N] in `out_dtype`, by default the compute dtype. `rows` are x quantised, where that is done."""
        if isinstance(self.weight, Tensor):
            return self.ops.linear(x_TK, self.weight, out_dtype=out_dtype or self.dtype)
        return self.of_quantized(self.ops.quantize_rows(x_TK) if rows is None else rows)

    def of_quantized(self, x: QuantizedRows) -> Tensor:
        """Outputs [T, N] of rows that were quantised already; the weight must be FP8."""
        return self.ops.linear_fp8(x, self.weight, out_dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class FusedProjection:
    """Several projections of one input: one product for each run of neighbours that can share one."""

    parts: tuple[tuple[Projection, tuple[int, ...]], ...]

    @classmethod
    def load(
        cls, ops: Ops, weights: Weights, rows_of: dict[str, int], inputs: int, *, quantized: bool = False
    ) -> "FusedProjection":
        """The matrices `rows_of` (name -> rows), in order."""
        runs: list[tuple[list[Tensor | Fp8Weight], list[int]]] = []
        for name, rows in rows_of.items():
            weight = weights.linear(name, rows, inputs, quantized=quantized)
            if runs and _fits(runs[-1][0][-1], weight):
                runs[-1][0].append(weight)
                runs[-1][1].append(rows)
            else:
                runs.append(([weight], [rows]))
        parts = ((Projection(ops, _stack(run), weights.dtype), tuple(rows)) for run, rows in runs)
        return cls(tuple(parts))

    @property
    def is_fp8(self) -> bool:
        """Whether any part multiplies quantised inputs."""
        return any(projection.is_fp8 for projection, _ in self.parts)

    @property
    def weight(self) -> Tensor | Fp8Weight:
        """The one matrix that all were fused into. Raises ValueError where there are several."""
        if len(self.parts) > 1:
            raise ValueError("these projections were not fused into one matrix: they are stored in different ways")
        return self.parts[0][0].weight

    def __call__(self, x_TK: Tensor, rows: QuantizedRows | None = None) -> tuple[Tensor, ...]:
        """Each matrix's outputs [T, N], views into the fused ones: rows are strided. `rows` as in `Projection`."""
        outputs = ((_without_padding(projection(x_TK, rows), widths), widths) for projection, widths in self.parts)
        return tuple(y for y_TN, widths in outputs for y in y_TN.split(widths, -1))

    def joined(self, x_TK: Tensor, rows: QuantizedRows | None = None) -> Tensor:
        """All outputs side by side [T, sum of N]."""
        outputs = [_without_padding(projection(x_TK, rows), widths) for projection, widths in self.parts]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)


_ALIGNED_ROWS = 8
"""Fused unquantised weights are padded to this many rows: output rows of 2-byte elements then start at 16 bytes."""


def _without_padding(y_TN: Tensor, rows: tuple[int, ...]) -> Tensor:
    return y_TN[:, : sum(rows)]


def _fits(last: Tensor | Fp8Weight, weight: Tensor | Fp8Weight) -> bool:
    if isinstance(last, Fp8Weight) and isinstance(weight, Fp8Weight):
        return last.codes_NK.shape[0] % GROUP == 0
    return isinstance(last, Tensor) and isinstance(weight, Tensor)


def _stack(run: Sequence[Tensor | Fp8Weight]) -> Tensor | Fp8Weight:
    if len(run) == 1:
        return run[0]
    tensors = [weight for weight in run if isinstance(weight, Tensor)]
    if tensors:
        short = -sum(weight.shape[0] for weight in tensors) % _ALIGNED_ROWS
        return torch.cat([*tensors, tensors[0].new_zeros(short, tensors[0].shape[1])])
    fp8 = [weight for weight in run if isinstance(weight, Fp8Weight)]
    codes = torch.cat([weight.codes_NK.view(torch.uint8) for weight in fp8]).view(torch.float8_e4m3fn)
    return Fp8Weight(codes, torch.cat([weight.scale_NK for weight in fp8]))
