"""The activation's cases with whole scale groups; BF16 rounding may move a value by one code."""

from stack.kernels.cases import Call, Case, Draw


def _rows(rows: int, inner: int) -> Case:
    def build(draw: Draw) -> Call:
        return Call((draw.normal(rows, 2 * inner, std=6.0),), {"limit": 10.0})

    return Case(f"{rows}x{inner}", build, float32=0.2, bfloat16=0.2)


CASES = (_rows(1, 128), _rows(17, 512), _rows(64, 256))
