"""Latent, low-rank and hidden widths; small values show the epsilon; strided rows as a fused product leaves them."""

from stack.kernels.cases import Call, Case, Draw


def _rows(rows: int, width: int, spread: float) -> Case:
    def build(draw: Draw) -> Call:
        return Call((draw.normal(rows, width, std=spread), draw.normal(width, mean=1.0, std=0.1)), {"eps": 1e-5})

    return Case(f"{rows}x{width}_{spread:g}", build)


def _columns(draw: Draw) -> Call:
    return Call((draw.normal(7, 640)[:, :128], draw.normal(128, mean=1.0, std=0.1)), {"eps": 1e-5})


CASES = (_rows(1, 256, 1.0), _rows(33, 512, 1.0), _rows(5, 128, 1e-3), Case("columns", _columns))
