"""Pools closed inside a pass, across two passes and in decode; plain and FP8 rows; long passes; padding."""

import torch

from stack.kernels.cases import Call, Case, Draw, Packing

WIDTH, KPOOL, PAGE = 128, 4, 64


def _requests(
    name: str, prefixes: list[int], lens: list[int], padding: int = 0, *, is_fp8: bool, ring: int = 8
) -> Case:
    def build(draw: Draw) -> Call:
        packing = Packing.of(draw, prefixes, lens, page_size=PAGE, padding=padding)
        pools = PAGE // KPOOL
        codes = draw.pool(packing.num_pages, pools, WIDTH, dtype=torch.float8_e4m3fn if is_fp8 else None)
        scales = draw.pool(packing.num_pages, pools, dtype=torch.float32) if is_fp8 else None
        tails = draw.pool(len(lens) + 1, ring, 2, WIDTH)
        fused = draw.normal(sum(lens) + padding, 2 * WIDTH + 32)
        norm = (draw.normal(WIDTH, mean=1.0, std=0.1), draw.normal(WIDTH, std=0.1))
        ape = draw.normal(KPOOL, WIDTH, std=0.5)
        args = (fused[:, :WIDTH], fused[:, WIDTH : 2 * WIDTH], *norm, ape, tails, codes, scales)
        rows = (packing.page_table_SP, packing.slot_R, packing.request_T, packing.position_T)
        written = (codes, tails) if scales is None else (codes, scales, tails)
        return Call((*args, *rows, packing.start_R1, packing.write_T), written=written)

    name = f"{'fp8_' if is_fp8 else ''}{name}"
    return Case(name, build, float32=0.15 if is_fp8 else 2e-5, bfloat16=0.15 if is_fp8 else 0.02)


CASES = tuple(
    case
    for is_fp8 in (False, True)
    for case in (
        _requests("one_token", [0], [1], is_fp8=is_fp8),
        _requests("prefill", [0, 64, 0], [3, 65, 130], is_fp8=is_fp8),
        _requests("decode", [3, 4, 6, 63, 64, 127], [1] * 6, padding=2, is_fp8=is_fp8),
        _requests("verify", [3, 60, 65], [8] * 3, is_fp8=is_fp8, ring=12),
        _requests("odd_chunks", [5, 9], [2, 90], padding=3, is_fp8=is_fp8),
    )
)
