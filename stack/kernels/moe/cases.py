"""Unquantised and FP8 experts; experts nobody chose, one row, padding ids."""

from types import SimpleNamespace

from stack.kernels.cases import Call, Case, Draw
from stack.kernels.linear_fp8.cases import fp8_weight
from stack.kernels.swiglu_quant.unfused import swiglu_quant

WIDTH, INNER = 256, 128


def _rows(rows: int, experts: int, top_k: int, padding: int = 0, *, is_fp8: bool = False) -> Case:
    def build(draw: Draw) -> Call:
        shapes = ((experts, 2 * INNER, WIDTH), (experts, WIDTH, INNER))
        if is_fp8:
            weights = SimpleNamespace(gate_up=fp8_weight(draw, *shapes[0]), down=fp8_weight(draw, *shapes[1]))
        else:
            gate_up, down = draw.normal(*shapes[0], std=1 / 16), draw.normal(*shapes[1], std=0.1)
            weights = SimpleNamespace(gate_up=gate_up, down=down)
        chosen = [draw.order(experts)[:top_k] for _ in range(rows - padding)] + [[-1] * top_k] * padding
        ids = draw.ints([expert for row in chosen for expert in row]).view(rows, top_k)
        args = (draw.normal(rows, WIDTH), ids, draw.uniform(rows, top_k) * (ids >= 0), weights)
        return Call(args, {"limit": 10.0, "swiglu_quant": swiglu_quant})

    name = f"{'fp8_' if is_fp8 else ''}{rows}x{experts}_top{top_k}{'_padded' if padding else ''}"
    return Case(name, build, float32=0.02 if is_fp8 else 2e-5, bfloat16=0.05)


CASES = (
    _rows(1, 8, 2),
    _rows(40, 8, 2),
    _rows(17, 72, 8, padding=5),
    _rows(1, 8, 2, is_fp8=True),
    _rows(40, 8, 2, padding=3, is_fp8=True),
)
