"""Pools, queries and indices as flat spans, as TileLang's compact tensors want them. Not an implementation.

A page pool is a strided view into pages that hold every layer. A kernel that addresses rows itself takes the span from
the view's first element to its last, in units of 16 bytes, so that each copy is one aligned access, and the strides in
those units. T rows, H heads, L latent values, N pages of P slots, W indices.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

LATENT = 512
"""Values of a latent that these kernels are written for."""


@dataclass(frozen=True, slots=True)
class FlatCall:
    """Flat tensors of a call, and the strides of q's rows and heads and the pool's pages and slots in 16-byte units."""

    q: Tensor
    latent: Tensor
    index: Tensor
    q_row: int
    q_head: int
    page: int
    slot: int
    page_shift: int
    index_row: int


def flat_call(name: str, q_THL: Tensor, latent_NPL: Tensor, index_TW: Tensor) -> FlatCall:
    """Raises ValueError for what the implementation `name` does not serve."""
    if q_THL.dtype != torch.bfloat16 or q_THL.shape[2] != LATENT:
        raise ValueError(f"{name} takes bfloat16 q of width {LATENT}, not {q_THL.dtype} of width {q_THL.shape[2]}")
    if latent_NPL.dtype not in (torch.bfloat16, torch.float8_e4m3fn):
        raise ValueError(f"{name} takes bfloat16 or float8_e4m3fn latents, not {latent_NPL.dtype}")
    if latent_NPL.shape[1] & (latent_NPL.shape[1] - 1):
        raise ValueError(f"{name} needs a power-of-two page size")
    if index_TW.dtype != torch.int32 or index_TW.stride(1) != 1:
        raise ValueError(f"{name} needs index rows of neighbouring 32-bit entries")
    q, latent = _units(name, q_THL), _units(name, latent_NPL)
    q_unit, unit = q.shape[1], latent.shape[1]
    return FlatCall(
        q,
        latent,
        _span(index_TW),
        q_THL.stride(0) // q_unit,
        q_THL.stride(1) // q_unit,
        latent_NPL.stride(0) // unit,
        latent_NPL.stride(1) // unit,
        latent_NPL.shape[1].bit_length() - 1,
        index_TW.stride(0),
    )


def _units(name: str, rows: Tensor) -> Tensor:
    """[16-byte units, values of a unit] from the first value to the last."""
    unit = 16 // rows.element_size()
    if rows.data_ptr() % 16 or rows.stride(-1) != 1 or any(stride % unit for stride in rows.stride()[:-1]):
        raise ValueError(f"{name} needs rows that begin at multiples of 16 bytes")
    return _span(rows).view(-1, unit)


def _span(tensor: Tensor) -> Tensor:
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((length,), (1,))
