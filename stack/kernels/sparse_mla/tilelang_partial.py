"""Sparse attention in parts, in TileLang: one block a query, 16 heads and part of its keys, then a merge of the parts.

The published system's form. A tile of FP8 keys is multiplied as it is: q is quantised per head row to E4M3, and so are
probabilities, times 448. The tile has 32 or 128 keys (`kv_tile`): 128 rescales the output a quarter as often, and is
taken for FP8 latents where rows alone fill the device; then one part is the output itself and nothing is merged.
Otherwise a tile of 32, with as many parts as fill the device. Columns behind the last index up to a multiple of the
tile exist only as masked scores: 2,112 indices are 17 tiles of 128, or 2,176 columns. Sixteen heads are the rows of the
matrix instruction, which is the warp's, not Hopper's own.

T rows, H heads, L latent values, W indices, P parts.
"""

# mypy: disable-error-code="valid-type,no-untyped-def"

from functools import cache
from typing import Any

import torch
from torch import Tensor

from stack.kernels.sparse_mla.flat_pool import LATENT, flat_call
from stack.kernels.sparse_mla.tilelang_merge import merge_parts
from stack.kernels.sparse_mla.tilelang_queries import E4M3, E4M3_MAX, placing, taking
from stack.kernels.tile_program import compiled, missing

__all__ = ["missing", "sparse_mla"]

HEADS = 16
STAGES_32, STAGES_128 = 2, 1
"""Tiles of keys in shared memory. Two of 128 FP8 keys would leave one block a multiprocessor fewer."""
THREADS = 128
BLOCKS = {(32, False): 2, (32, True): 4, (128, True): 3}
"""Tile, whether keys are FP8 -> blocks for which a multiprocessor has shared memory, and shall have registers."""
HELD = 2
"""Heads whose scores a thread holds: their reductions share barriers."""
FORMS = ((32, False, False), (32, False, True), (32, True, False), (32, True, True), (128, True, True))
"""Arguments of `program`: all that the rule takes."""


def sparse_mla(
    q_THL: Tensor,
    latent_NPL: Tensor,
    index_TW: Tensor,
    *,
    scale: float,
    num_splits: int | None = None,
    kv_tile: int = 128,
) -> Tensor:
    """See the op's contract. `num_splits` None follows the rule above."""
    is_fp8 = latent_NPL.element_size() == 1
    processors = torch.cuda.get_device_properties(q_THL.device).multi_processor_count
    blocks = q_THL.shape[0] * -(-q_THL.shape[1] // HEADS)
    is_full = blocks >= processors
    tile = 128 if kv_tile == 128 and is_fp8 and is_full else 32
    tiles = -(-index_TW.shape[1] // tile)
    splits = num_splits or (1 if is_full else max(1, min(tiles // 2, 2 * processors // max(blocks, 1))))
    return attend(q_THL, latent_NPL, index_TW, scale, tile, -(-tiles // -(-tiles // min(tiles, splits))))


def attend(q_THL: Tensor, latent_NPL: Tensor, index_TW: Tensor, scale: float, tile: int, parts: int) -> Tensor:
    """`parts` parts of whole tiles; one of them is the output itself."""
    call = flat_call("tilelang_partial", q_THL, latent_NPL, index_TW)
    rows, heads, width = q_THL.shape
    out = torch.empty((rows, heads, width), dtype=q_THL.dtype, device=q_THL.device)
    if rows == 0:
        return out
    partial = out if parts == 1 else torch.empty((parts, rows, heads, width), dtype=torch.float32, device=out.device)
    lse = torch.empty((parts, rows, heads), dtype=torch.float32, device=q_THL.device)
    tiles = -(-index_TW.shape[1] // tile)
    kernel(tile, latent_NPL.element_size() == 1, parts == 1)(
        call.q, call.latent, call.index, partial.view(-1, width), lse.view(-1), rows, heads, index_TW.shape[1],
        -(-tiles // parts), parts, call.q_row, call.q_head, call.page, call.slot, call.page_shift, call.index_row,
        scale * 1.4426950408889634,
    )  # fmt: skip
    if parts > 1:
        merge_parts(partial, lse, out)
    return out


@cache
def kernel(tile: int, is_fp8: bool, is_whole: bool) -> Any:
    """The compiled program of these choices."""
    return compiled(program(tile, is_fp8, is_whole))


def program(tile: int, is_fp8: bool, is_whole: bool) -> Any:
    """Attention over tiles of `tile` keys; `is_whole` writes BF16 outputs, otherwise FP32 parts and their
    log-sum-exps in base 2."""
    import tilelang.language as tl

    kv, unit, peak_p = (E4M3, 16, E4M3_MAX) if is_fp8 else ("bfloat16", 8, 1.0)
    take, place = taking(HEADS), placing(kv, HEADS)
    written = "bfloat16" if is_whole else "float32"
    q_units, units, entries, rows_out, logs = (
        tl.dynamic(name, "int64") for name in ("q_units", "units", "entries", "rows_out", "logs")
    )
    wide, none = "int64", -tl.infinity("float32")
    num_stages, num_blocks = STAGES_32 if tile == 32 else STAGES_128, BLOCKS[tile, is_fp8]

    @tl.prim_func
    def attend_tiles(
        q: tl.Tensor((q_units, 8), "bfloat16"),
        latent: tl.Tensor((units, unit), kv),
        index: tl.Tensor((entries,), "int32"),
        out: tl.Tensor((rows_out, LATENT), written),
        lse: tl.Tensor((logs,), "float32"),
        rows: tl.int32,
        heads: tl.int32,
        width: tl.int32,
        tiles: tl.int32,
        parts: tl.int32,
        q_row: tl.int64,
        q_head: tl.int64,
        page: tl.int64,
        slot_units: tl.int64,
        page_shift: tl.int32,
        index_row: tl.int64,
        scale_log2: tl.float32,
    ):
        with tl.Kernel(rows, tl.ceildiv(heads, HEADS), parts, threads=THREADS) as (row, block, part):
            tl.annotate_min_blocks_per_sm(num_blocks)
            q_shared = tl.alloc_shared((HEADS, LATENT), kv)
            keys = tl.alloc_shared((tile, LATENT), kv)
            p_shared = tl.alloc_shared((HEADS, tile), kv)
            q_scale = tl.alloc_shared((HEADS,), "float32")
            score = tl.alloc_fragment((HEADS, tile), "float32")
            mixed = tl.alloc_fragment((HEADS, LATENT), "float32")
            peak = tl.alloc_fragment((HEADS,), "float32")
            last = tl.alloc_fragment((HEADS,), "float32")
            shrink = tl.alloc_fragment((HEADS,), "float32")
            total = tl.alloc_fragment((HEADS,), "float32")
            weight = tl.alloc_fragment((HEADS, tile), "float32")

            if is_fp8:
                query = tl.alloc_fragment((HEADS, LATENT), "float32")
                largest = tl.alloc_fragment((HEADS,), "float32")
                take(q, row, block, heads, q_row, q_head, query)
                place(query, largest, 1.0, q_shared, q_scale)
            else:
                take(q, row, block, heads, q_row, q_head, q_shared)
                for h in tl.Parallel(HEADS):
                    q_scale[h] = 1.0
            tl.fill(mixed, 0.0)
            tl.fill(weight, 0.0)
            tl.fill(peak, -1e30)
            for t in tl.Pipelined(tiles, num_stages=num_stages):
                for n, d in tl.Parallel(tile, LATENT):
                    column = tl.min((part * tiles + t) * tile + n, width - 1)
                    slot = tl.max(index[tl.cast(row, wide) * index_row + column], 0)
                    keys[n, d] = latent[
                        tl.cast(slot >> page_shift, wide) * page
                        + tl.cast(slot & ((1 << page_shift) - 1), wide) * slot_units
                        + d // unit,
                        d % unit,
                    ]
                tl.gemm(q_shared, keys, score, transpose_B=True, clear_accum=True, policy=tl.GemmWarpPolicy.FullCol)
                for h, n in tl.Parallel(HEADS, tile):
                    at = (part * tiles + t) * tile + n
                    slot_n = index[tl.cast(row, wide) * index_row + tl.min(at, width - 1)]
                    score[h, n] = tl.if_then_else(
                        (at < width) and (slot_n >= 0), score[h, n] * (q_scale[h] * scale_log2), none
                    )
                tl.copy(peak, last)
                tl.reduce_max(score, peak, dim=1, clear=False, batch=HELD)
                for h in tl.Parallel(HEADS):
                    shrink[h] = tl.exp2(last[h] - peak[h])
                for h, n in tl.Parallel(HEADS, tile):
                    score[h, n] = tl.exp2(score[h, n] - peak[h])
                    weight[h, n] = weight[h, n] * shrink[h] + score[h, n]
                for h, n in tl.Parallel(HEADS, tile):
                    p_shared[h, n] = tl.cast(score[h, n] * peak_p, kv)
                for h, d in tl.Parallel(HEADS, LATENT):
                    mixed[h, d] = mixed[h, d] * shrink[h]
                tl.gemm(p_shared, keys, mixed, policy=tl.GemmWarpPolicy.FullCol)
            tl.reduce_sum(weight, total, dim=1, batch=HELD)
            for h in tl.Parallel(HEADS):
                last[h] = tl.if_then_else(total[h] > 0, 1.0 / (total[h] * peak_p), 0.0)
            for h, d in tl.Parallel(HEADS, LATENT):
                mixed[h, d] = mixed[h, d] * last[h]
            for h, d in tl.Parallel(HEADS, LATENT):
                if block * HEADS + h < heads:
                    out[(tl.cast(part, wide) * rows + row) * heads + block * HEADS + h, d] = mixed[h, d]
            if not is_whole:
                for h in tl.Parallel(HEADS):
                    shrink[h] = tl.if_then_else(total[h] > 0, peak[h] + tl.log2(total[h]), none)
                for h in tl.Parallel(HEADS):
                    if block * HEADS + h < heads:
                        lse[(tl.cast(part, wide) * rows + row) * heads + block * HEADS + h] = shrink[h]

    return attend_tiles
