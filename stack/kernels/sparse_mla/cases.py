"""Rows with no, few and all tokens; one row to several blocks; pages in each cache dtype."""

import torch

from stack.kernels.cases import Call, Case, Draw

WIDTH, PAGE = 512, 64


def _rows(name: str, counts: list[int], heads: int, width: int = 128, dtype: torch.dtype | None = None) -> Case:
    def build(draw: Draw) -> Call:
        pages = draw.pool(9, PAGE, WIDTH, dtype=dtype)
        sets = [[PAGE + slot for slot in draw.order(8 * PAGE)[:count]] for count in counts]
        index = draw.ints([slot for row in sets for slot in row + [-1] * (width - len(row))]).view(len(counts), width)
        return Call((draw.normal(len(counts), heads, WIDTH), pages, index), {"scale": 1 / 16})

    return Case(name, build, bfloat16=0.02)


CASES = (
    _rows("one_row", [67], 4),
    _rows("few_tokens", [0, 1, 2, 3, 5, 31, 32, 33, 64, 66], 4),
    _rows("many_rows", [67] * 40, 4),
    _rows("sixteen_heads", [300, 448, 7], 16, width=448),
    _rows("bf16_pages", [67, 20, 0], 4, dtype=torch.bfloat16),
    _rows("fp8_pages", [67, 20, 0], 4, dtype=torch.float8_e4m3fn),
)
