"""The product, summed in FP64 so that it judges every order of summation."""

import torch
from torch import Tensor


def linear(x_TK: Tensor, weight_NK: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """`x @ weight.T` [T, N]."""
    return (x_TK.double() @ weight_NK.double().t()).to(out_dtype or x_TK.dtype)


def linear_heads(x_THK: Tensor, weight_HNK: Tensor, *, by_row: bool = False) -> Tensor:
    """One product a head [T, H, N]."""
    y_THN = torch.einsum("thk,hnk->thn", x_THK.double(), weight_HNK.double()).to(x_THK.dtype)
    return y_THN.contiguous() if by_row else y_THN
