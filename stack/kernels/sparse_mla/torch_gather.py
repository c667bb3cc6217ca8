"""Gather each row's latents and attend, a few rows at a time (CPU).

Every row has the same shape [H, L] x [L, W], so its result does not depend on the batch. T rows, B rows of a block.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_BLOCK_ROWS = 16


def sparse_mla(
    q_THL: Tensor, latent_NPL: Tensor, index_TW: Tensor, *, scale: float, num_splits: int | None = None
) -> Tensor:
    """Attended latents [T, H, L] in q's dtype."""
    fetch = _fetcher(latent_NPL, index_TW)
    blocks = []
    for q_BHL, index_BW in zip(q_THL.split(_BLOCK_ROWS), index_TW.split(_BLOCK_ROWS), strict=True):
        c_BWL = fetch(index_BW.clamp(min=0).long()).float()
        score_BHW = torch.bmm(q_BHL.float(), c_BWL.transpose(1, 2)).mul_(scale)
        is_token = (index_BW >= 0)[:, None]
        p_BHW = torch.softmax(score_BHW.masked_fill_(~is_token, -torch.inf), -1)
        p_BHW = p_BHW.masked_fill_(~is_token.any(-1, keepdim=True), 0.0).to(q_THL.dtype).float()
        blocks.append(torch.bmm(p_BHW, c_BWL).to(q_THL.dtype))
    return torch.cat(blocks)


def _fetcher(latent_NPL: Tensor, index_TW: Tensor) -> Callable[[Tensor], Tensor]:
    """How to get latents [B, W, L] for token slots [B, W]: from a stage of whole pages where that is fewer bytes."""
    page_size, width = latent_NPL.shape[1:]
    raw_NPL = latent_NPL.view(torch.uint8) if latent_NPL.dtype == torch.float8_e4m3fn else latent_NPL
    pages = torch.unique(index_TW.clamp(min=0) // page_size)
    if pages.shape[0] * page_size > index_TW.numel():
        return lambda slot_BW: raw_NPL[slot_BW // page_size, slot_BW % page_size].view(latent_NPL.dtype)
    stage_QL = raw_NPL[pages].view(-1, width)
    place_N = torch.zeros(latent_NPL.shape[0], dtype=torch.int64)
    place_N[pages] = torch.arange(pages.shape[0])

    def fetch(slot_BW: Tensor) -> Tensor:
        row_BW = place_N[slot_BW // page_size] * page_size + slot_BW % page_size
        rows = stage_QL.index_select(0, row_BW.flatten()).view(latent_NPL.dtype)
        return rows.view(*slot_BW.shape, width)

    return fetch
