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


def linear_heads(x_THK: Tensor, weight_HNK: Tensor, *, by_row: bool = False) -> Tensor:
    """One product a head [T, H, N]; the library writes either layout itself."""
    rows, heads, outputs = *x_THK.shape[:2], weight_HNK.shape[1]
    shape = (rows, heads, outputs) if by_row else (heads, rows, outputs)
    y = torch.empty(shape, dtype=x_THK.dtype, device=x_THK.device)
    y_HTN = y.transpose(0, 1) if by_row else y
    torch.bmm(x_THK.transpose(0, 1), weight_HNK.transpose(1, 2), out=y_HTN)
    return y_HTN.transpose(0, 1)
