"""Products in fixed row tiles (CPU): a row's bits never depend on its neighbours."""

import torch
from torch import Tensor

from stack.kernels.row_tiles import tiled_matmul


def missing(device: str) -> str | None:
    """Tiles are for the CPU; a GPU has its own product."""
    return None if device == "cpu" else "fixed row tiles are for the CPU"


def linear(x_TK: Tensor, weight_NK: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """`x @ weight.T` [T, N], FP32 inside, rounded once."""
    return tiled_matmul(x_TK, weight_NK).to(out_dtype or x_TK.dtype)


def linear_heads(x_THK: Tensor, weight_HNK: Tensor, *, by_row: bool = False) -> Tensor:
    """One product a head [T, H, N], in x's dtype."""
    y = [tiled_matmul(x_TK, weight_NK) for x_TK, weight_NK in zip(x_THK.unbind(1), weight_HNK, strict=True)]
    y_THN = torch.stack(y, dim=1) if by_row else torch.stack(y).transpose(0, 1)
    return y_THN.to(x_THK.dtype)
