"""Latent, low-rank and hidden widths; small values show the epsilon; strided rows as a fused product leaves them."""

from stack.kernels.cases import Call, Case, Draw
from stack.kernels.quantize_rows.torch_group import quantize_rows


def _rows(rows: int, width: int, spread: float) -> Case:
    def build(draw: Draw) -> Call:
        return Call((draw.normal(rows, width, std=spread), draw.normal(width, mean=1.0, std=0.1)), {"eps": 1e-5})

    return Case(f"{rows}x{width}_{spread:g}", build)


def _columns(draw: Draw) -> Call:
    return Call((draw.normal(7, 640)[:, :128], draw.normal(128, mean=1.0, std=0.1)), {"eps": 1e-5})


def _quantized(draw: Draw) -> Call:
    call = _rows(6, 256, 1.0).build(draw)
    return Call(call.args, {**call.kwargs, "quantize_rows": quantize_rows})


CASES = (
    _rows(1, 256, 1.0),
    _rows(33, 512, 1.0),
    _rows(5, 128, 1e-3),
    Case("columns", _columns),
    Case("quantized", _quantized, function="rms_norm_quant", float32=0.2, bfloat16=0.2),
)
