"""Merges the parts of a split sparse attention by their log-sum-exps, in TileLang. Not an implementation of its own.

P parts, T rows, H heads, L latent values. `lse` is in base 2; a part without keys has -inf and weighs nothing.
"""

# mypy: disable-error-code="valid-type,no-untyped-def"

from functools import cache
from typing import Any

from torch import Tensor

from stack.kernels.sparse_mla.flat_pool import LATENT
from stack.kernels.tile_program import compiled

MERGED = 4
"""Heads' rows that a block takes."""
THREADS = 128
FORMS: tuple[tuple[Any, ...], ...] = ((),)
"""Arguments of `program`."""


def merge_parts(partial_PTHL: Tensor, lse_PTH: Tensor, out_THL: Tensor) -> None:
    """Write the weighted mean of the FP32 parts into the contiguous `out_THL`."""
    parts, rows, heads, width = partial_PTHL.shape
    kernel()(partial_PTHL.view(-1, width), lse_PTH.view(-1), out_THL.view(-1, width), rows * heads, parts)


@cache
def kernel() -> Any:
    """The compiled program."""
    return compiled(program())


def program() -> Any:
    """One block for some rows of heads: their largest log-sum-exp, then the weighted sum."""
    import tilelang.language as tl

    in_rows, rows_out, logs = (tl.dynamic(name, "int64") for name in ("in_rows", "rows_out", "logs"))
    wide = "int64"

    @tl.prim_func
    def merge_rows(
        partial: tl.Tensor((in_rows, LATENT), "float32"),
        lse: tl.Tensor((logs,), "float32"),
        out: tl.Tensor((rows_out, LATENT), "bfloat16"),
        rows: tl.int32,
        parts: tl.int32,
    ):
        with tl.Kernel(tl.ceildiv(rows, MERGED), threads=THREADS) as block:
            mixed = tl.alloc_fragment((MERGED, LATENT), "float32")
            peak = tl.alloc_fragment((MERGED,), "float32")
            total = tl.alloc_fragment((MERGED,), "float32")
            weight = tl.alloc_fragment((MERGED,), "float32")
            tl.fill(mixed, 0.0)
            tl.fill(total, 0.0)
            tl.fill(peak, -1e30)
            for part in tl.serial(parts):
                for i in tl.Parallel(MERGED):
                    peak[i] = tl.max(peak[i], lse[tl.cast(part, wide) * rows + tl.min(block * MERGED + i, rows - 1)])
            for part in tl.serial(parts):
                for i in tl.Parallel(MERGED):
                    weight[i] = tl.exp2(
                        lse[tl.cast(part, wide) * rows + tl.min(block * MERGED + i, rows - 1)] - peak[i]
                    )
                    total[i] = total[i] + weight[i]
                for i, d in tl.Parallel(MERGED, LATENT):
                    mixed[i, d] = (
                        mixed[i, d]
                        + weight[i] * (partial[tl.cast(part, wide) * rows + tl.min(block * MERGED + i, rows - 1), d])
                    )
            for i, d in tl.Parallel(MERGED, LATENT):
                if block * MERGED + i < rows:
                    out[block * MERGED + i, d] = tl.if_then_else(total[i] > 0, mixed[i, d] / total[i], 0.0)

    return merge_rows
