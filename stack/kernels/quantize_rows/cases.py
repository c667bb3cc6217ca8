"""Rows of ordinary, tiny, zero and huge values; the codes are exact."""

from stack.kernels.cases import Call, Case, Draw


def _rows(rows: int, width: int, spread: float) -> Case:
    def build(draw: Draw) -> Call:
        x = draw.normal(rows, width, std=spread)
        x[-1] = 0.0
        x[0, 0] = spread * 1000
        return Call((x,))

    return Case(f"{rows}x{width}_{spread:g}", build, is_exact=True)


CASES = (_rows(1, 128, 1.0), _rows(17, 512, 1.0), _rows(5, 256, 1e-12), _rows(6, 384, 1e4), _rows(130, 128, 0.01))
