"""Merges the parts of a split sparse attention by their log-sum-exps. Not an implementation of its own.

P parts, T rows, H heads, L latent values. `lse` is in base 2; a part without keys has -inf and weighs nothing.
"""

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def _merge(partial, lse, out, rows_heads, parts, P: tl.constexpr, L: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, P)
    logs = tl.load(lse + p.to(tl.int64) * rows_heads + row, mask=p < parts, other=float("-inf"))
    peak = tl.max(logs, axis=0)
    total = tl.sum(tl.exp2(logs - tl.where(peak == float("-inf"), 0.0, peak)), axis=0)
    columns = tl.arange(0, L)
    mixed = tl.zeros((L,), tl.float32)
    for i in range(parts):
        log = tl.load(lse + tl.cast(i, tl.int64) * rows_heads + row)
        weight = tl.where(log == float("-inf"), 0.0, tl.exp2(log - peak) / total)
        mixed += weight * tl.load(partial + (tl.cast(i, tl.int64) * rows_heads + row) * L + columns)
    tl.store(out + row * L + columns, mixed.to(out.dtype.element_ty))


def merge_partials(partial_PTHL: "Tensor", lse_PTH: "Tensor", out_THL: "Tensor") -> None:
    """Write the weighted mean of the parts into the contiguous `out_THL`."""
    parts, rows, heads, width = partial_PTHL.shape
    grid: Any = (rows * heads,)
    _merge[grid](
        partial_PTHL, lse_PTH, out_THL, rows * heads, parts, P=triton.next_power_of_2(parts), L=width, num_warps=4
    )
