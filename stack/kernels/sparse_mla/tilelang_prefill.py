"""Sparse attention for many rows of 16 heads, in TileLang, on Hopper's warpgroup instructions.

Keys are the 64 rows of the instruction and heads its columns, so 16 heads waste nothing: S' = K q' and O' = K' P'. BF16
latents are multiplied as they are. FP8 latents are widened to FP16 in shared memory (exact), as the instruction takes
FP8 operands only as they lie, and K' does not; probabilities and q are FP16 there, which holds q up to 65,504. One
block takes all keys of 16 heads of a row, so a few rows leave the device empty: `num_splits` must be 1 or None.
`tilelang_wide` has the form for a multiple of 64 heads, where these are the rows.

T rows, H heads, L latent values, W indices.
"""

# mypy: disable-error-code="valid-type,no-untyped-def"

from functools import cache
from typing import Any

import torch
from torch import Tensor

from stack.kernels.sparse_mla import tilelang_wide
from stack.kernels.sparse_mla.flat_pool import LATENT, flat_call
from stack.kernels.sparse_mla.tilelang_queries import OPERANDS, placing, taking
from stack.kernels.tile_program import compiled, missing

__all__ = ["missing", "sparse_mla"]

HEADS = 16
TILE = 64
BF16_STAGES, FP8_STAGES, Q8_STAGES = 1, 0, 1
"""Tiles of keys in shared memory. With two, the gather of the next overlaps with the products of this one; with one,
the two blocks overlap that a multiprocessor then holds, which on an H200 is 1.4 to 1.6 times as fast. A tile of `fp8`
latents beside its widened copy leaves room for one block: with none, they are widened on their way."""
THREADS = 128
HELD = 4
"""Heads whose scores a thread holds: their reductions share barriers."""
FORMS = (("bf16",), ("fp8",), ("q8",))
"""Arguments of `program`."""


def sparse_mla(
    q_THL: Tensor,
    latent_NPL: Tensor,
    index_TW: Tensor,
    *,
    scale: float,
    num_splits: int | None = None,
    fp8_scores: bool = False,
) -> Tensor:
    """See the op's contract. `fp8_scores` quantises q per head row to E4M3 and multiplies it with FP8 latents as they
    are."""
    call = flat_call("tilelang_prefill", q_THL, latent_NPL, index_TW)
    if num_splits not in (None, 1):
        raise ValueError(f"tilelang_prefill takes a row's keys in one part, not {num_splits}")
    rows, heads, width = q_THL.shape
    out = torch.empty((rows, heads, width), dtype=q_THL.dtype, device=q_THL.device)
    if rows == 0:
        return out
    is_fp8 = latent_NPL.element_size() == 1
    form = tilelang_wide.kernel if heads % tilelang_wide.HEADS == 0 else kernel
    form("q8" if is_fp8 and fp8_scores else "fp8" if is_fp8 else "bf16")(
        call.q, call.latent, call.index, out.view(-1, width), rows, heads, index_TW.shape[1],
        -(-index_TW.shape[1] // TILE), call.q_row, call.q_head, call.page, call.slot, call.page_shift, call.index_row,
        scale * 1.4426950408889634,
    )  # fmt: skip
    return out


@cache
def kernel(kind: str) -> Any:
    """The compiled program of this kind of latents."""
    return compiled(program(kind))


def program(kind: str) -> Any:
    """`bf16` latents; `fp8` latents, widened; `q8`: the scores from FP8 operands, the output from widened ones."""
    import tilelang.language as tl

    is_fp8, has_fp8_scores = kind != "bf16", kind == "q8"
    stored, unit, product, scored = OPERANDS[kind]
    take, place = taking(HEADS), placing(scored, HEADS)
    q_units, units, entries, rows_out = (
        tl.dynamic(name, "int64") for name in ("q_units", "units", "entries", "rows_out")
    )
    wide, none = "int64", -tl.infinity("float32")
    num_stages = {"bf16": BF16_STAGES, "fp8": FP8_STAGES, "q8": Q8_STAGES}[kind]
    is_direct = kind == "fp8" and num_stages == 0

    @tl.prim_func
    def attend_rows(
        q: tl.Tensor((q_units, 8), "bfloat16"),
        latent: tl.Tensor((units, unit), stored),
        index: tl.Tensor((entries,), "int32"),
        out: tl.Tensor((rows_out, LATENT), "bfloat16"),
        rows: tl.int32,
        heads: tl.int32,
        width: tl.int32,
        tiles: tl.int32,
        q_row: tl.int64,
        q_head: tl.int64,
        page: tl.int64,
        slot_units: tl.int64,
        page_shift: tl.int32,
        index_row: tl.int64,
        scale_log2: tl.float32,
    ):
        with tl.Kernel(rows, tl.ceildiv(heads, HEADS), threads=THREADS) as (row, block):
            q_shared = tl.alloc_shared((HEADS, LATENT), scored)
            gathered = tl.alloc_shared((TILE, LATENT), stored)
            p_shared = tl.alloc_shared((HEADS, TILE), product)
            o_shared = tl.alloc_shared((HEADS, LATENT), "bfloat16")
            q_scale = tl.alloc_shared((HEADS,), "float32")
            score = tl.alloc_fragment((TILE, HEADS), "float32")
            mixed = tl.alloc_fragment((LATENT, HEADS), "float32")
            peak = tl.alloc_fragment((HEADS,), "float32")
            last = tl.alloc_fragment((HEADS,), "float32")
            shrink = tl.alloc_fragment((HEADS,), "float32")
            total = tl.alloc_fragment((HEADS,), "float32")
            weight = tl.alloc_fragment((TILE, HEADS), "float32")
            query = tl.alloc_fragment((HEADS, LATENT), "float32")
            largest = tl.alloc_fragment((HEADS,), "float32")

            take(q, row, block, heads, q_row, q_head, query)
            place(query, largest, scale_log2, q_shared, q_scale)
            tl.fill(mixed, 0.0)
            tl.fill(weight, 0.0)
            tl.fill(peak, -1e30)
            if is_fp8:
                widened = tl.alloc_shared((TILE, LATENT), product)
            for t in tl.Pipelined(tiles, num_stages=num_stages):
                for n, d in tl.Parallel(TILE, LATENT):
                    slot = tl.max(index[tl.cast(row, wide) * index_row + tl.min(t * TILE + n, width - 1)], 0)
                    value = latent[
                        tl.cast(slot >> page_shift, wide) * page
                        + tl.cast(slot & ((1 << page_shift) - 1), wide) * slot_units
                        + d // unit,
                        d % unit,
                    ]
                    if is_direct:
                        widened[n, d] = tl.cast(value, product)
                    else:
                        gathered[n, d] = value
                if is_fp8 and not is_direct:
                    for n, d in tl.Parallel(TILE, LATENT):
                        widened[n, d] = tl.cast(gathered[n, d], product)
                if is_fp8 and not has_fp8_scores:
                    tl.gemm(widened, q_shared, score, transpose_B=True, clear_accum=True)
                else:
                    tl.gemm(gathered, q_shared, score, transpose_B=True, clear_accum=True)
                for n, h in tl.Parallel(TILE, HEADS):
                    slot_n = index[tl.cast(row, wide) * index_row + tl.min(t * TILE + n, width - 1)]
                    score[n, h] = tl.if_then_else(
                        (t * TILE + n < width) and (slot_n >= 0), score[n, h] * q_scale[h], none
                    )
                tl.copy(peak, last)
                tl.reduce_max(score, peak, dim=0, clear=False, batch=HELD)
                for h in tl.Parallel(HEADS):
                    shrink[h] = tl.exp2(last[h] - peak[h])
                for n, h in tl.Parallel(TILE, HEADS):
                    score[n, h] = tl.exp2(score[n, h] - peak[h])
                    weight[n, h] = weight[n, h] * shrink[h] + score[n, h]
                for n, h in tl.Parallel(TILE, HEADS):
                    p_shared[h, n] = tl.cast(score[n, h], product)
                for d, h in tl.Parallel(LATENT, HEADS):
                    mixed[d, h] = mixed[d, h] * shrink[h]
                if is_fp8:
                    tl.gemm(widened, p_shared, mixed, transpose_A=True, transpose_B=True)
                else:
                    tl.gemm(gathered, p_shared, mixed, transpose_A=True, transpose_B=True)
            tl.reduce_sum(weight, total, dim=0, batch=HELD)
            for h in tl.Parallel(HEADS):
                last[h] = tl.if_then_else(total[h] > 0, 1.0 / total[h], 0.0)
            for d, h in tl.Parallel(LATENT, HEADS):
                o_shared[h, d] = tl.cast(mixed[d, h] * last[h], "bfloat16")
            for h, d in tl.Parallel(HEADS, LATENT):
                if block * HEADS + h < heads:
                    out[tl.cast(row, wide) * heads + block * HEADS + h, d] = o_shared[h, d]

    return attend_rows
