"""Scores of pooled keys straight from their pages. Not an implementation of its own.

A tile of neighbouring rows is scored together, a page of keys at a time: rows of one request share every key that is
read. Correct for any rows; the tile only decides how much is shared. In Triton, or (`warpgroup`, FP8 under 32 heads)
by `page_scores.cu`.
T rows, H index heads, D index width, Q pools a page, P columns of a score row.
"""

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import triton
import triton.language as tl

from stack.kernels.cuda_source import CudaKernel

if TYPE_CHECKING:
    from torch import Tensor

_SOURCE = Path(__file__).with_name("page_scores.cu")
_FP8 = {rows: CudaKernel(_SOURCE, f"page_scores_{rows}", 2 * 64 * (128 + 4) + rows * 32 * 128) for rows in (8, 4, 1)}
_BLOCKS = {8: 792, 4: 1056, 1: 1584}
"""Blocks that a call aims at: two waves of what an H200 holds."""


class ScoreArguments(ctypes.Structure):
    """`ScoreArguments` of the source."""

    _fields_: ClassVar[Any] = (
        [(name, ctypes.c_void_p) for name in "q weight codes scales page_table slot request position out".split()]
        + [(name, ctypes.c_int64) for name in "codes_page codes_row scales_page table_row out_row".split()]
        + [(name, ctypes.c_int) for name in "rows kpool page_shift parts".split()]
    )


@triton.jit
def _score(
    q, w, codes, scales, page_table, slot, request, position, out, rows, kpool, columns, codes_page, codes_row,
    scales_page, table_row,
    HAS_SCALE: tl.constexpr, R: tl.constexpr, H: tl.constexpr, D: tl.constexpr, Q: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    begin = tl.program_id(0) * R
    part = tl.program_id(1)
    head_row = tl.arange(0, R * H)
    row_of_head = begin + head_row // H
    d = tl.arange(0, D)
    inside = row_of_head < rows
    at = row_of_head.to(tl.int64) * H + head_row % H
    query = tl.load(q + at[None, :] * D + d[:, None], mask=inside[None, :], other=0.0)
    weight = tl.load(w + at, mask=inside, other=0.0)
    row = begin + tl.arange(0, R)
    owner = tl.load(request + row, mask=row < rows, other=-1)
    limit = tl.where(row < rows, (tl.load(position + row, mask=row < rows, other=-1) + 1) // kpool, 0)
    pool_in_page = tl.arange(0, Q)
    first = tl.load(request + begin)
    last = tl.load(request + tl.minimum(begin + R, rows) - 1)
    for r in range(first, last + 1):
        state_slot = tl.load(slot + r).to(tl.int64)
        mine = (owner == r) & (state_slot > 0)
        pools = tl.max(tl.where(mine, limit, 0), axis=0)
        for page_number in range(part, tl.cdiv(pools, Q), PARTS):
            page = tl.load(page_table + state_slot * table_row + page_number).to(tl.int64)
            keys = tl.load(codes + page * codes_page + pool_in_page[:, None] * codes_row + d[None, :])
            product = tl.maximum(tl.dot(keys, query), 0.0) * weight[None, :]
            score = tl.sum(tl.reshape(product, (Q, R, H)), axis=2)
            if HAS_SCALE:
                score *= tl.load(scales + page * scales_page + pool_in_page)[:, None]
            pool = page_number * Q + pool_in_page
            keep = mine[None, :] & (pool[:, None] < limit[None, :])
            tl.store(out + row.to(tl.int64)[None, :] * columns + pool[:, None], score, mask=keep)


def page_scores(
    q_THD: "Tensor",
    w_TH: "Tensor",
    codes_NQD: "Tensor",
    scale_NQ: "Tensor | None",
    page_table_SP: "Tensor",
    slot_R: "Tensor",
    request_T: "Tensor",
    position_T: "Tensor",
    out_TP: "Tensor",
    *,
    kpool: int,
    rows_a_request: int,
    warpgroup: bool = False,
) -> None:
    """Write the scores of every candidate pool of every row; other entries of `out_TP` stay as they are.

    `q_THD` contiguous, in the codes' dtype; `w_TH` FP32 contiguous with every factor but the key's scale.
    """
    rows, heads, head_dim = q_THD.shape
    if warpgroup:
        if scale_NQ is None or (heads, head_dim) != (32, 128):
            raise ValueError("the warpgroup kernel scores FP8 keys of 128 channels under 32 heads")
        tile = 8 if rows_a_request >= 8 else 4 if rows_a_request >= 4 else 1
        parts = max(1, min(64, _BLOCKS[tile] // triton.cdiv(rows, tile)))
        pools_a_page = codes_NQD.shape[1]
        if pools_a_page & (pools_a_page - 1):
            raise ValueError(f"a page must hold a power of two of pools, not {pools_a_page}")
        arguments = ScoreArguments(
            q=q_THD.data_ptr(), weight=w_TH.data_ptr(), codes=codes_NQD.data_ptr(), scales=scale_NQ.data_ptr(),
            page_table=page_table_SP.data_ptr(), slot=slot_R.data_ptr(), request=request_T.data_ptr(),
            position=position_T.data_ptr(), out=out_TP.data_ptr(), codes_page=codes_NQD.stride(0),
            codes_row=codes_NQD.stride(1), scales_page=scale_NQ.stride(0), table_row=page_table_SP.stride(0),
            out_row=out_TP.stride(0), rows=rows, kpool=kpool, parts=parts,
            page_shift=pools_a_page.bit_length() - 1,
        )  # fmt: skip
        _FP8[tile].launch((triton.cdiv(rows, tile), parts, 1), 128, [arguments])
        return
    tile = max(1, min(8, triton.next_power_of_2(rows_a_request)))
    tiles = triton.cdiv(rows, tile)
    parts = max(1, min(64, 1024 // tiles))
    grid: Any = (tiles, parts)
    _score[grid](
        q_THD, w_TH, codes_NQD, scale_NQ, page_table_SP, slot_R, request_T, position_T, out_TP, rows, kpool,
        out_TP.stride(0),
        codes_NQD.stride(0), codes_NQD.stride(1), 0 if scale_NQ is None else scale_NQ.stride(0),
        page_table_SP.stride(0),
        HAS_SCALE=scale_NQ is not None, R=tile, H=heads, D=head_dim, Q=codes_NQD.shape[1], PARTS=parts,
        num_warps=4 if tile * heads <= 64 else 8, num_stages=3,
    )  # fmt: skip
