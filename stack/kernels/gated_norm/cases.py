"""Heads of 128; outputs as small as the epsilon; gates that are strided views."""

from stack.kernels.cases import Call, Case, Draw


def _heads(rows: int, heads: int, spread: float) -> Case:
    def build(draw: Draw) -> Call:
        gate = draw.normal(rows, 2, heads, 128)[:, 1]
        weight = draw.normal(128, mean=1.0, std=0.1)
        return Call((draw.normal(rows, heads, 128, std=spread), gate, weight), {"eps": 1e-5})

    return Case(f"{rows}x{heads}_{spread:g}", build)


CASES = (_heads(1, 1, 1.0), _heads(17, 4, 1.0), _heads(5, 16, 3e-3))
