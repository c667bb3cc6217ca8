"""One row at a time: score every candidate, sort, expand."""

import torch
from torch import Tensor

from stack.kernels.index_rows import quantize_index_rows


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
) -> Tensor:
    """Token slots int32 [T, W], valid ones first, -1 behind them and in padding rows."""
    width = -(-(budget * kpool + kpool - 1) // 64) * 64
    page_size = codes_NQD.shape[1] * kpool
    index_TW = torch.full((q_THD.shape[0], width), -1, dtype=torch.int32, device=q_THD.device)
    for row in range(q_THD.shape[0]):
        slot, position = int(slot_R[request_T[row]]), int(position_T[row])
        if slot == 0:
            continue
        pages = page_table_SP[slot].tolist()
        query_HD = _query(q_THD[row], is_fp8=scale_NQ is not None)
        scores = [
            _score(query_HD, w_TH[row], codes_NQD, scale_NQ, pages[pool * kpool // page_size], pool)
            for pool in range((position + 1) // kpool)
        ]
        best = sorted(range(len(scores)), key=lambda pool: (-scores[pool], pool))[:budget]
        tokens = [pool * kpool + offset for pool in sorted(best) for offset in range(kpool)]
        tokens += range((position + 1) // kpool * kpool, position + 1)
        slots = [pages[token // page_size] * page_size + token % page_size for token in tokens]
        index_TW[row, : len(slots)] = torch.tensor(slots, dtype=torch.int32, device=q_THD.device)
    return index_TW


def _query(q_HD: Tensor, *, is_fp8: bool) -> Tensor:
    if not is_fp8:
        return q_HD.double()
    codes, scale = quantize_index_rows(q_HD)
    return codes.double() * scale.double()[:, None]


def _score(q_HD: Tensor, w_H: Tensor, codes_NQD: Tensor, scale_NQ: Tensor | None, page: int, pool: int) -> float:
    row = pool % codes_NQD.shape[1]
    key_D = codes_NQD[page, row].double()
    if scale_NQ is not None:
        key_D = key_D * scale_NQ[page, row].double()
    return float((w_H.double() * torch.relu(q_HD @ key_D * q_HD.shape[1] ** -0.5)).sum())
