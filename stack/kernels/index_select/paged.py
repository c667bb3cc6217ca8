"""Scores straight from the pages, then the top-k: decode, verify and short prefill passes; FP8 or BF16 keys."""

import torch
from torch import Tensor

from stack.kernels.devices import hopper_only
from stack.kernels.index_select.paged_scores import page_scores
from stack.kernels.index_select.top_pools import index_width, prepared_queries, row_tiles, score_columns, top_pools

missing = hopper_only


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
    warpgroup: bool = False,
    held: bool = False,
) -> Tensor:
    """See the op's contract; `warpgroup` picks the kernel of the scores, `held` that of the top-k."""
    rows, columns = q_THD.shape[0], score_columns(max_context, kpool)
    index_TW = torch.empty((rows, index_width(kpool, budget)), dtype=torch.int32, device=q_THD.device)
    query, weight = prepared_queries(q_THD, w_TH, fp8=scale_NQ is not None)
    for tile in row_tiles(rows, columns, workspace_bytes):
        score = torch.empty((tile.stop - tile.start, columns), dtype=torch.float32, device=q_THD.device)
        place = (page_table_SP, slot_R, request_T[tile], position_T[tile])
        a_request = -(-rows // slot_R.shape[0])
        page_scores(
            query[tile],
            weight[tile],
            codes_NQD,
            scale_NQ,
            *place,
            score,
            kpool=kpool,
            rows_a_request=a_request,
            warpgroup=warpgroup,
        )
        page_size = codes_NQD.shape[1] * kpool
        top_pools(score, *place, index_TW[tile], kpool=kpool, budget=budget, page_size=page_size, held=held)
    return index_TW
