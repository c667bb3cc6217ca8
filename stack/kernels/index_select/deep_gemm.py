"""DeepGEMM's FP8 scores over a contiguous stage of each request's pooled keys, for prefill; other passes go straight
to the pages.

The stage holds `requests x widest context` keys and never more than a quarter of the workspace: passes that need
more, or that bring few rows a request, are scored from the pages. R requests, P pools of the widest request, T rows.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.devices import hopper_only, package_missing
from stack.kernels.index_select import paged
from stack.kernels.index_select.top_pools import index_width, prepared_queries, row_tiles, score_columns, top_pools

MIN_ROWS = 64
"""Rows a request from which staging its keys pays."""


def missing(device: str) -> str | None:
    """Needs Hopper, and a DeepGEMM that loads."""
    return hopper_only(device) or package_missing("deep_gemm")


@triton.jit
def _stage(
    codes,
    scales,
    page_table,
    slot,
    out_codes,
    out_scales,
    pools,
    codes_page,
    codes_row,
    scales_page,
    table_row,
    Q: tl.constexpr,
    D: tl.constexpr,
):
    request, page_number = tl.program_id(0), tl.program_id(1)
    state_slot = tl.load(slot + request).to(tl.int64)
    page = tl.load(page_table + state_slot * table_row + page_number).to(tl.int64)
    q, d = tl.arange(0, Q), tl.arange(0, D)
    pool = page_number * Q + q
    inside = pool < pools
    at = request.to(tl.int64) * pools + pool
    tl.store(
        out_codes + at[:, None] * D + d[None, :],
        tl.load(codes + page * codes_page + q[:, None] * codes_row + d[None, :]),
        mask=inside[:, None],
    )
    tl.store(out_scales + at, tl.load(scales + page * scales_page + q), mask=inside)


@triton.jit
def _bounds(request, position, begin, end, rows, pools, kpool, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    first = tl.load(request + row, mask=inside, other=0) * pools
    tl.store(begin + row, first, mask=inside)
    seen = tl.minimum((tl.load(position + row, mask=inside, other=0) + 1) // kpool, pools)
    tl.store(end + row, first + seen, mask=inside)


def index_select(
    q_THD: Tensor,
    w_TH: Tensor,
    codes_NQD: Tensor,
    scale_NQ: Tensor | None,
    page_table_SP: Tensor,
    slot_R: Tensor,
    request_T: Tensor,
    position_T: Tensor,
    *,
    kpool: int,
    budget: int,
    max_context: int,
    workspace_bytes: int,
    held: bool = False,
) -> Tensor:
    """See the op's contract. Keys must be FP8. `held` picks the kernels for a top-k in registers."""
    if scale_NQ is None:
        raise ValueError("deep_gemm scores FP8 index keys; use paged for BF16 ones")
    place = (page_table_SP, slot_R, request_T, position_T)
    rows, requests = q_THD.shape[0], slot_R.shape[0]
    pools = score_columns(max_context, kpool)
    stage_bytes = requests * pools * (codes_NQD.shape[2] + 4)
    if rows < MIN_ROWS * requests or stage_bytes > workspace_bytes // 4:
        is_quick = held and rows > requests  # with one row a request the plain kernel is: 67 against 84 us at 56
        return paged.index_select(
            q_THD, w_TH, codes_NQD, scale_NQ, *place,
            kpool=kpool, budget=budget, max_context=max_context, workspace_bytes=workspace_bytes,
            warpgroup=is_quick, held=is_quick,
        )  # fmt: skip
    import deep_gemm

    keys = _staged_keys(codes_NQD, scale_NQ, page_table_SP, slot_R, pools)
    bounds = torch.empty((2, rows), dtype=torch.int32, device=q_THD.device)
    grid: Any = (triton.cdiv(rows, 1024),)
    _bounds[grid](request_T, position_T, bounds[0], bounds[1], rows, pools, kpool, BLOCK=1024, num_warps=4)
    index_TW = torch.empty((rows, index_width(kpool, budget)), dtype=torch.int32, device=q_THD.device)
    query, weight = prepared_queries(q_THD, w_TH, fp8=True)
    page_size = codes_NQD.shape[1] * kpool
    for tile in row_tiles(rows, pools, workspace_bytes):
        score = deep_gemm.fp8_mqa_logits(
            query[tile], keys, weight[tile], bounds[0, tile], bounds[1, tile], clean_logits=False, max_seqlen_k=pools
        )
        rows_of_tile = (page_table_SP, slot_R, request_T[tile], position_T[tile])
        top_pools(score, *rows_of_tile, index_TW[tile], kpool=kpool, budget=budget, page_size=page_size, held=held)
    return index_TW


def _staged_keys(
    codes_NQD: Tensor, scale_NQ: Tensor, page_table_SP: Tensor, slot_R: Tensor, pools: int
) -> tuple[Tensor, Tensor]:
    requests, (_, a_page, head_dim) = slot_R.shape[0], codes_NQD.shape
    codes = torch.empty((requests * pools, head_dim), dtype=codes_NQD.dtype, device=codes_NQD.device)
    scales = torch.empty((requests * pools,), dtype=torch.float32, device=codes_NQD.device)
    grid: Any = (requests, triton.cdiv(pools, a_page))
    strides = (codes_NQD.stride(0), codes_NQD.stride(1), scale_NQ.stride(0), page_table_SP.stride(0))
    _stage[grid](
        codes_NQD, scale_NQ, page_table_SP, slot_R, codes, scales, pools, *strides, Q=a_page, D=head_dim, num_warps=4
    )
    return codes, scales
