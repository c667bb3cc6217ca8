"""Scores of pooled keys straight from their pages. Not an implementation of its own.

A program scores one page at a time for a tile of neighbouring rows: rows of one request share every key that is read.
Correct for any
rows; the tile only decides how much is shared. T rows, H index heads, D index width, Q pools a page.
"""

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor


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
) -> None:
    """Write the scores of every candidate pool of every row; other entries of `out_TP` stay as they are.

    `q_THD` contiguous, in the codes' dtype; `w_TH` FP32 contiguous with every factor but the key's scale.
    """
    rows, heads, head_dim = q_THD.shape
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
