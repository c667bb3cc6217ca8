"""The library's own matrix product (cuBLAS on a GPU)."""

import torch
from torch import Tensor
from torch.nn import functional


def linear(x_TK: Tensor, weight_NK: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """`x @ weight.T` [T, N]; the library accumulates in FP32 and rounds to x's dtype."""
    if out_dtype is None or out_dtype == x_TK.dtype:
        return functional.linear(x_TK, weight_NK)
    if out_dtype == torch.float32 and x_TK.is_cuda:
        return torch.mm(x_TK, weight_NK.t(), out_dtype=torch.float32)
    return functional.linear(x_TK.to(out_dtype), weight_NK.to(out_dtype))


def linear_heads(x_THK: Tensor, weight_HNK: Tensor) -> Tensor:
    """One product a head [T, H, N]."""
    return torch.bmm(x_THK.transpose(0, 1), weight_HNK.transpose(1, 2)).transpose(0, 1)
