"""Gather each row's latents and attend, a few rows at a time (CPU).

A row is computed in a shape that its own number of tokens decides (rounded up), never its neighbours', so its result
does not depend on the batch. T rows, B rows of a block, H heads, L latent width, W token slots.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_BLOCK_ROWS = 8
_WIDTH_STEP = 32
_UNIT = torch.complex128
"""Latents are copied in 16-byte units: an indexed copy costs by the element."""


def missing(device: str) -> str | None:
    """The host groups rows by their number of tokens."""
    return None if device == "cpu" else "it groups rows on the host, which is for the CPU"


def sparse_mla(
    q_THL: Tensor, latent_NPL: Tensor, index_TW: Tensor, *, scale: float, num_splits: int | None = None
) -> Tensor:
    """Attended latents [T, H, L] in q's dtype."""
    fetch = _fetcher(latent_NPL, index_TW)
    width_T = -(-(index_TW >= 0).sum(1) // _WIDTH_STEP) * _WIDTH_STEP
    order_T = torch.argsort(width_T, stable=True)
    q_THL, index_TW = q_THL.index_select(0, order_T), index_TW.index_select(0, order_T).long()
    widths, counts = torch.unique_consecutive(width_T[order_T], return_counts=True)
    outputs, begin = [], 0
    for width, count in zip(widths.tolist(), counts.tolist(), strict=True):
        group = slice(begin, begin + count)
        begin += count
        if width == 0:
            outputs.append(torch.zeros_like(q_THL[group]))
            continue
        blocks = zip(q_THL[group].split(_BLOCK_ROWS), index_TW[group, :width].split(_BLOCK_ROWS), strict=True)
        outputs += [_attend(q_BHL, fetch, index_BW, scale) for q_BHL, index_BW in blocks]
    return torch.cat(outputs).index_select(0, torch.argsort(order_T))


def _attend(q_BHL: Tensor, fetch: Callable[[Tensor], Tensor], index_BW: Tensor, scale: float) -> Tensor:
    c_BWL = fetch(index_BW.clamp(min=0)).float()
    score_BHW = torch.bmm(q_BHL.float(), c_BWL.transpose(1, 2)).mul_(scale)
    score_BHW.masked_fill_((index_BW < 0)[:, None], -torch.inf)
    p_BHW = torch.softmax(score_BHW, -1).to(q_BHL.dtype).float()
    return torch.bmm(p_BHW, c_BWL).to(q_BHL.dtype)


def _fetcher(latent_NPL: Tensor, index_TW: Tensor) -> Callable[[Tensor], Tensor]:
    """How to get latents [B, W, L] for token slots [B, W]: from a stage of whole pages where that is fewer bytes."""
    page_size, dtype = latent_NPL.shape[1], latent_NPL.dtype
    units_NPU = latent_NPL.view(_UNIT)
    is_used_N = torch.zeros(latent_NPL.shape[0], dtype=torch.bool)
    is_used_N[(index_TW.clamp(min=0) // page_size).flatten()] = True
    pages = is_used_N.nonzero()[:, 0]
    if pages.shape[0] * page_size > index_TW.numel():
        return lambda slot_BW: units_NPU[slot_BW // page_size, slot_BW % page_size].view(dtype)
    stage_QU = units_NPU[pages].flatten(0, 1)
    place_N = torch.zeros(latent_NPL.shape[0], dtype=torch.int64)
    place_N[pages] = torch.arange(pages.shape[0])

    def fetch(slot_BW: Tensor) -> Tensor:
        row_BW = place_N[slot_BW // page_size] * page_size + slot_BW % page_size
        return stage_QU.index_select(0, row_BW.flatten()).view(*slot_BW.shape, -1).view(dtype)

    return fetch
