"""Gather each row's latents and attend, a few rows at a time (CPU).

Every row has the same shape [H, L] x [L, W], so its result does not depend on the batch. T rows, B rows of a block.
"""

import torch
from torch import Tensor

_BLOCK_ROWS = 16


def sparse_mla(
    q_THL: Tensor, latent_NPL: Tensor, index_TW: Tensor, *, scale: float, num_splits: int | None = None
) -> Tensor:
    """Attended latents [T, H, L] in q's dtype."""
    flat, pages_apart = _token_rows(latent_NPL)
    page_size, dtype = latent_NPL.shape[1], q_THL.dtype
    blocks = []
    for q_BHL, index_BW in zip(q_THL.split(_BLOCK_ROWS), index_TW.split(_BLOCK_ROWS), strict=True):
        token = index_BW.clamp(min=0).flatten().int()
        row = token // page_size * pages_apart + token % page_size
        c_BWL = _values(flat.index_select(0, row), latent_NPL.dtype).view(*index_BW.shape, -1)
        score_BHW = torch.bmm(q_BHL.float(), c_BWL.transpose(1, 2)).mul_(scale)
        is_token = (index_BW >= 0)[:, None]
        p_BHW = torch.softmax(score_BHW.masked_fill_(~is_token, -torch.inf), -1)
        p_BHW = p_BHW.masked_fill_(~is_token.any(-1, keepdim=True), 0.0).to(dtype).float()
        blocks.append(torch.bmm(p_BHW, c_BWL).to(dtype))
    return torch.cat(blocks)


def _token_rows(latent_NPL: Tensor) -> tuple[Tensor, int]:
    """The pool as rows of one latent each, and how many such rows lie between the starts of two pages."""
    num_pages, page_size, width = latent_NPL.shape
    raw = latent_NPL.view(torch.uint8) if latent_NPL.dtype == torch.float8_e4m3fn else latent_NPL
    page_stride, row_stride, _ = raw.stride()
    if row_stride != width or page_stride % width:
        raise ValueError(f"a page must hold whole latent rows back to back, not strides {raw.stride()}")
    pages_apart = page_stride // width
    return raw.as_strided(((num_pages - 1) * pages_apart + page_size, width), (width, 1)), pages_apart


def _values(raw: Tensor, dtype: torch.dtype) -> Tensor:
    return (raw.view(dtype) if dtype == torch.float8_e4m3fn else raw).float()
