"""Indices of a paged pool's tokens as row numbers of one flat tensor, for kernels that know no pages. Not an
implementation.

A page pool is a strided view; its flat rows begin every `unit` values, so that every token is one of them, and
neighbours overlap where the unit is shorter than a latent. T rows, W indices, N pages of P slots, L latent values.
"""

# mypy: disable-error-code="no-untyped-def"

from math import gcd
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ALIGNED = 8
"""BF16 values of 16 bytes, where each row must begin."""


@triton.jit
def _place_rows(index, out, width, padded, index_row, page_units, slot_units, page_shift, W: tl.constexpr):
    row, w = tl.program_id(0).to(tl.int64), tl.arange(0, W)
    slot = tl.load(index + row * index_row + w, mask=w < width, other=-1)
    place = (slot >> page_shift) * page_units + (slot & ((1 << page_shift) - 1)) * slot_units
    tl.store(out + row * padded + w, tl.where(slot < 0, -1, place), mask=w < padded)


def flat_rows(latent_NPL: Tensor) -> Tensor:
    """[rows, 1, L], a view. Raises ValueError where its rows cannot be counted in 32 bits or are not aligned."""
    pages, slots, width = latent_NPL.shape
    unit = _unit(latent_NPL)
    last = (pages - 1) * latent_NPL.stride(0) + (slots - 1) * latent_NPL.stride(1)
    if unit % ALIGNED or latent_NPL.stride(2) != 1 or latent_NPL.data_ptr() % 16:
        raise ValueError("flash_mla needs latents that begin at multiples of 16 bytes")
    if last // unit >= 2**31:
        raise ValueError(f"flash_mla counts rows of {unit} values in 32 bits, and this pool has {last // unit} of them")
    return latent_NPL.as_strided((last // unit + 1, 1, width), (unit, unit, 1))


def flat_index(index_TW: Tensor, latent_NPL: Tensor, multiple: int) -> Tensor:
    """[T, 1, W up to `multiple`] int32: rows of `flat_rows`, -1 for no token and behind the last index."""
    rows, width = index_TW.shape
    if latent_NPL.shape[1] & (latent_NPL.shape[1] - 1):
        raise ValueError("flash_mla needs a power-of-two page size")
    padded, unit = -(-width // multiple) * multiple, _unit(latent_NPL)
    out = torch.empty((rows, 1, padded), dtype=torch.int32, device=index_TW.device)
    launch: Any = (rows,)
    _place_rows[launch](
        index_TW, out, width, padded, index_TW.stride(0), latent_NPL.stride(0) // unit, latent_NPL.stride(1) // unit,
        latent_NPL.shape[1].bit_length() - 1, W=triton.next_power_of_2(padded), num_warps=4,
    )  # fmt: skip
    return out


def _unit(latent_NPL: Tensor) -> int:
    return gcd(latent_NPL.stride(0), latent_NPL.stride(1))
