"""Block-scaled products: one row, ragged row tiles, several scale groups both ways."""

import torch

from stack.kernels.cases import Call, Case, Draw
from stack.kernels.quantize_rows.reference import quantize_rows
from stack.kernels.quantized import Fp8Weight


def fp8_weight(draw: Draw, *shape: int) -> Fp8Weight:
    """Codes of unit spread and uneven block scales for a matrix, or a stack of them."""
    codes = draw.normal(*shape, dtype=torch.float8_e4m3fn)
    blocks = (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
    return Fp8Weight(codes, (draw.uniform(*blocks) + 0.5) * shape[-1] ** -0.5)


def _product(rows: int, inputs: int, outputs: int) -> Case:
    def build(draw: Draw) -> Call:
        x = quantize_rows(draw.normal(rows, inputs, std=3.0))
        return Call((x, fp8_weight(draw, outputs, inputs)), {"out_dtype": draw.dtype})

    return Case(f"{rows}x{inputs}x{outputs}", build)


CASES = (_product(1, 256, 128), _product(17, 384, 512), _product(64, 128, 640), _product(130, 1024, 256))
