"""With values beyond the clamp on both sides, and without a limit."""

from stack.kernels.cases import Call, Case, Draw


def _rows(rows: int, inner: int, limit: float | None) -> Case:
    def build(draw: Draw) -> Call:
        return Call((draw.normal(rows, 2 * inner, std=6.0),), {"limit": limit})

    return Case(f"{rows}x{inner}_{limit}", build)


CASES = (_rows(1, 128, 10.0), _rows(17, 512, 10.0), _rows(5, 128, None))
