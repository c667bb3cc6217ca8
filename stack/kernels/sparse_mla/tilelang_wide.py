"""Sparse attention for many rows of 64 heads or a multiple, in TileLang. `tilelang_prefill` calls it for them.

64 heads fill the rows of Hopper's matrix instruction, and a tile is gathered once for all of them. Two warpgroups share
a block: each has half of a tile's keys for the scores and half of the latent's values for the output. Latents are
treated as in `tilelang_prefill`.
"""

# mypy: disable-error-code="valid-type,no-untyped-def"

from functools import cache
from typing import Any

from stack.kernels.sparse_mla.flat_pool import LATENT
from stack.kernels.sparse_mla.tilelang_queries import OPERANDS, placing
from stack.kernels.tile_program import compiled

HEADS = 64
TILE = 64
STAGES = 2
"""Tiles of keys in shared memory."""
THREADS = 256
HELD = 2
"""Heads whose scores a thread holds: their reductions share barriers."""
FORMS = (("bf16",), ("fp8",), ("q8",))
"""Arguments of `program`."""


@cache
def kernel(kind: str) -> Any:
    """The compiled program of this kind of latents."""
    return compiled(program(kind))


def program(kind: str) -> Any:
    """`bf16` latents; `fp8` latents, widened; `q8`: the scores from FP8 operands, the output from widened ones."""
    import tilelang.language as tl

    is_fp8, has_fp8_scores = kind != "bf16", kind == "q8"
    stored, unit, product, scored = OPERANDS[kind]
    place = placing(scored, HEADS)
    q_units, units, entries, rows_out = (
        tl.dynamic(name, "int64") for name in ("q_units", "units", "entries", "rows_out")
    )
    wide, none, num_stages = "int64", -tl.infinity("float32"), STAGES
    columns = tl.GemmWarpPolicy.FullCol

    @tl.prim_func
    def attend_heads(
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
        with tl.Kernel(rows, heads // HEADS, threads=THREADS) as (row, block):
            q_shared = tl.alloc_shared((HEADS, LATENT), scored)
            gathered = tl.alloc_shared((TILE, LATENT), stored)
            p_shared = tl.alloc_shared((HEADS, TILE), product)
            o_shared = tl.alloc_shared((HEADS, LATENT), "bfloat16")
            q_scale = tl.alloc_shared((HEADS,), "float32")
            score = tl.alloc_fragment((HEADS, TILE), "float32")
            weight = tl.alloc_fragment((HEADS, TILE), "float32")
            mixed = tl.alloc_fragment((HEADS, LATENT), "float32")
            peak = tl.alloc_fragment((HEADS,), "float32")
            last = tl.alloc_fragment((HEADS,), "float32")
            shrink = tl.alloc_fragment((HEADS,), "float32")
            total = tl.alloc_fragment((HEADS,), "float32")
            query = tl.alloc_fragment((HEADS, LATENT), "float32")
            largest = tl.alloc_fragment((HEADS,), "float32")

            for h, d in tl.Parallel(HEADS, LATENT):
                query[h, d] = q[tl.cast(row, wide) * q_row + tl.cast(block * HEADS + h, wide) * q_head + d // 8, d % 8]
            place(query, largest, scale_log2, q_shared, q_scale)
            tl.fill(mixed, 0.0)
            tl.fill(weight, 0.0)
            tl.fill(peak, -1e30)
            if is_fp8:
                widened = tl.alloc_shared((TILE, LATENT), product)
            for t in tl.Pipelined(tiles, num_stages=num_stages):
                for n, d in tl.Parallel(TILE, LATENT):
                    slot = tl.max(index[tl.cast(row, wide) * index_row + tl.min(t * TILE + n, width - 1)], 0)
                    gathered[n, d] = latent[
                        tl.cast(slot >> page_shift, wide) * page
                        + tl.cast(slot & ((1 << page_shift) - 1), wide) * slot_units
                        + d // unit,
                        d % unit,
                    ]
                if is_fp8:
                    for n, d in tl.Parallel(TILE, LATENT):
                        widened[n, d] = tl.cast(gathered[n, d], product)
                if is_fp8 and not has_fp8_scores:
                    tl.gemm(q_shared, widened, score, transpose_B=True, clear_accum=True, policy=columns)
                else:
                    tl.gemm(q_shared, gathered, score, transpose_B=True, clear_accum=True, policy=columns)
                for h, n in tl.Parallel(HEADS, TILE):
                    slot_n = index[tl.cast(row, wide) * index_row + tl.min(t * TILE + n, width - 1)]
                    score[h, n] = tl.if_then_else(
                        (t * TILE + n < width) and (slot_n >= 0), score[h, n] * q_scale[h], none
                    )
                tl.copy(peak, last)
                tl.reduce_max(score, peak, dim=1, clear=False, batch=HELD)
                for h in tl.Parallel(HEADS):
                    shrink[h] = tl.exp2(last[h] - peak[h])
                for h, n in tl.Parallel(HEADS, TILE):
                    score[h, n] = tl.exp2(score[h, n] - peak[h])
                    weight[h, n] = weight[h, n] * shrink[h] + score[h, n]
                for h, n in tl.Parallel(HEADS, TILE):
                    p_shared[h, n] = tl.cast(score[h, n], product)
                for h, d in tl.Parallel(HEADS, LATENT):
                    mixed[h, d] = mixed[h, d] * shrink[h]
                if is_fp8:
                    tl.gemm(p_shared, widened, mixed, policy=columns)
                else:
                    tl.gemm(p_shared, gathered, mixed, policy=columns)
            tl.reduce_sum(weight, total, dim=1, batch=HELD)
            for h in tl.Parallel(HEADS):
                last[h] = tl.if_then_else(total[h] > 0, 1.0 / total[h], 0.0)
            for h, d in tl.Parallel(HEADS, LATENT):
                o_shared[h, d] = tl.cast(mixed[h, d] * last[h], "bfloat16")
            for h, d in tl.Parallel(HEADS, LATENT):
                out[tl.cast(row, wide) * heads + block * HEADS + h, d] = o_shared[h, d]

    return attend_heads
