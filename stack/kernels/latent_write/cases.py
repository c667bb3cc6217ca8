"""Pages in each cache dtype, padding rows, one row; values beyond the range of E4M3."""

import torch

from stack.kernels.cases import Call, Case, Draw

WIDTH, PAGE = 512, 64


def _rows(name: str, rows: int, padding: int, dtype: torch.dtype | None = None, gain: float = 1.0) -> Case:
    def build(draw: Draw) -> Call:
        pages = draw.pool(5, PAGE, WIDTH, dtype=dtype)
        targets = [PAGE + slot for slot in draw.order(4 * PAGE)[:rows]] + [0] * padding
        kv = draw.normal(rows + padding, WIDTH + 128)[:, 128:]
        weight = draw.normal(WIDTH, mean=gain, std=0.1)
        return Call((kv, weight, pages, draw.ints(targets, torch.int64)), {"eps": 1e-5}, written=(pages,))

    is_fp8 = dtype == torch.float8_e4m3fn
    fine = 2e-5 if dtype is None else 0.02
    return Case(name, build, float32=0.15 if is_fp8 else fine, bfloat16=0.15 if is_fp8 else 0.02)


CASES = (
    _rows("one", 1, 0),
    _rows("padded", 37, 11),
    _rows("bf16_pages", 40, 0, torch.bfloat16),
    _rows("fp8_pages", 40, 3, torch.float8_e4m3fn),
    _rows("fp8_saturates", 40, 0, torch.float8_e4m3fn, gain=300.0),
)
