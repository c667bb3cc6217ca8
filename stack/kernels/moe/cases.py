"""Unquantised and FP8 experts; experts nobody chose, one row, padding ids; a shared expert, narrower than others."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from stack.kernels.cases import Call, Case, Draw
from stack.kernels.linear.reference import linear
from stack.kernels.linear_fp8.cases import fp8_weight
from stack.kernels.linear_fp8.reference import linear_fp8
from stack.kernels.quantize_rows.reference import quantize_rows
from stack.kernels.quantized import QuantizedRows
from stack.kernels.swiglu.reference import swiglu
from stack.kernels.swiglu_quant.unfused import swiglu_quant

WIDTH, INNER, LIMIT = 256, 128, 10.0


@dataclass(frozen=True, slots=True)
class Shared:
    """A shared expert that runs by itself with the formulas."""

    weights: SimpleNamespace

    def __call__(self, x_TC: Tensor, rows: QuantizedRows | None = None) -> Tensor:
        """Its outputs in x's dtype."""
        gate_up, down = self.weights.gate_up, self.weights.down
        if isinstance(gate_up, Tensor):
            inner = swiglu(linear(x_TC, gate_up, out_dtype=x_TC.dtype), limit=LIMIT)
            return linear(inner, down, out_dtype=x_TC.dtype)
        rows = quantize_rows(x_TC) if rows is None else rows
        inner_rows = swiglu_quant(linear_fp8(rows, gate_up, out_dtype=x_TC.dtype), limit=LIMIT)
        return linear_fp8(inner_rows, down, out_dtype=x_TC.dtype)


def matrices(draw: Draw, is_fp8: bool, inner: int, *count: int) -> SimpleNamespace:
    """gate_up and down of one expert, or of `count` stacked ones."""
    shapes = ((*count, 2 * inner, WIDTH), (*count, WIDTH, inner))
    if is_fp8:
        return SimpleNamespace(gate_up=fp8_weight(draw, *shapes[0]), down=fp8_weight(draw, *shapes[1]))
    return SimpleNamespace(gate_up=draw.normal(*shapes[0], std=1 / 16), down=draw.normal(*shapes[1], std=0.1))


def _rows(
    rows: int,
    experts: int,
    top_k: int,
    padding: int = 0,
    *,
    is_fp8: bool = False,
    inner: int = INNER,
    has_shared: bool = False,
    is_quantized: bool = False,
) -> Case:
    def build(draw: Draw) -> Call:
        weights = matrices(draw, is_fp8, inner, experts)
        chosen = [draw.order(experts)[:top_k] for _ in range(rows - padding)] + [[-1] * top_k] * padding
        ids = draw.ints([expert for row in chosen for expert in row]).view(rows, top_k)
        x = draw.normal(rows, WIDTH)
        args = (x, ids, draw.uniform(rows, top_k) * (ids >= 0), weights)
        options: dict[str, Any] = {"limit": LIMIT, "swiglu_quant": swiglu_quant}
        if has_shared:
            options |= {
                "shared": Shared(matrices(draw, is_fp8, INNER)),
                "rows": quantize_rows(x) if is_quantized else None,
            }
        return Call(args, options)

    name = f"{'fp8_' if is_fp8 else ''}{rows}x{experts}_top{top_k}{'_padded' if padding else ''}"
    name += f"{'_shared' if has_shared else ''}{'_quantized' if is_quantized else ''}"
    return Case(name, build, float32=0.02 if is_fp8 else 2e-5, bfloat16=0.05)


CASES = (
    _rows(1, 8, 2),
    _rows(40, 8, 2),
    _rows(17, 72, 8, padding=5),
    _rows(1, 8, 2, is_fp8=True),
    _rows(40, 8, 2, padding=3, is_fp8=True),
    _rows(17, 8, 2, inner=2 * INNER, has_shared=True),
    _rows(19, 8, 2, padding=3, is_fp8=True, inner=2 * INNER, has_shared=True),
    _rows(18, 8, 2, is_fp8=True, has_shared=True, is_quantized=True),
)
