"""Contexts below, at and beyond the budget; prefill, decode and verify rows; plain and FP8 keys; padding; ties."""

import torch

from stack.kernels.cases import Call, Case, Draw, Packing

HEADS, WIDTH, KPOOL, PAGE = 32, 128, 4, 64


def _requests(
    name: str,
    prefixes: list[int],
    lens: list[int],
    padding: int = 0,
    *,
    budget: int = 16,
    is_fp8: bool = False,
    has_ties: bool = False,
) -> Case:
    def build(draw: Draw) -> Call:
        packing = Packing.of(draw, prefixes, lens, page_size=PAGE, padding=padding)
        pools = PAGE // KPOOL
        codes = draw.pool(packing.num_pages, pools, WIDTH, dtype=torch.float8_e4m3fn if is_fp8 else None)
        if has_ties:
            codes[:, 1::2] = codes[:, ::2]
        scales = 2.0 ** draw.pool(packing.num_pages, pools, dtype=torch.float32).round() if is_fp8 else None
        rows = sum(lens) + padding
        args = (draw.normal(rows, HEADS, WIDTH), draw.normal(rows, HEADS, std=HEADS**-0.5, dtype=torch.float32))
        packed = (packing.page_table_SP, packing.slot_R, packing.request_T, packing.position_T)
        longest = max(p + n for p, n in zip(prefixes, lens, strict=True))
        options = {"kpool": KPOOL, "budget": budget, "max_context": longest, "workspace_bytes": 2**20}
        return Call((*args, codes, scales, *packed), options)

    return Case(name, build, is_exact=True, is_set=True)


CASES = (
    _requests("one_token", [0], [1]),
    _requests("below_budget", [0], [66]),
    _requests("prefill", [0, 64], [150, 90]),
    _requests("long", [500, 0], [40, 3]),
    _requests("decode", [2, 3, 64, 200, 300], [1] * 5, padding=3),
    _requests("verify", [100, 7], [8, 8]),
    _requests("ties", [250], [5], has_ties=True),
    _requests("fp8_prefill", [0, 64], [150, 90], is_fp8=True),
    _requests("fp8_decode", [2, 64, 200, 300], [1] * 4, padding=1, is_fp8=True),
    _requests("large_budget", [300], [9], budget=512),
)
