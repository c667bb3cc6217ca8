"""DeepGEMM's BF16 product where its tiles fit, the library's own (`torch_matmul`) for every other shape and type.

Chosen by name for the large products of a model, where a kernel written for Hopper may be faster than the library's
choice. What fits: BF16 operands, a multiple of 64 inputs and of 16 outputs, at least 64 of these.
"""

import torch
from torch import Tensor

from stack.kernels.devices import hopper_only, package_missing
from stack.kernels.linear import torch_matmul
from stack.kernels.linear.torch_matmul import linear_heads

__all__ = ["linear", "linear_heads", "missing"]

INPUTS, OUTPUTS, LEAST_OUTPUTS = 64, 16, 64


def missing(device: str) -> str | None:
    """Needs Hopper, and a DeepGEMM that loads."""
    return hopper_only(device) or package_missing("deep_gemm")


def linear(x_TK: Tensor, weight_NK: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """`x @ weight.T` [T, N], FP32 inside, rounded once."""
    out_dtype = out_dtype or x_TK.dtype
    if not _fits(x_TK, weight_NK, out_dtype):
        return torch_matmul.linear(x_TK, weight_NK, out_dtype=out_dtype)
    import deep_gemm

    y_TN = torch.empty((x_TK.shape[0], weight_NK.shape[0]), dtype=out_dtype, device=x_TK.device)
    if len(x_TK):
        deep_gemm.bf16_gemm_nt(x_TK, weight_NK, y_TN)
    return y_TN


def _fits(x_TK: Tensor, weight_NK: Tensor, out_dtype: torch.dtype) -> bool:
    is_narrow = x_TK.dtype == weight_NK.dtype == torch.bfloat16 and out_dtype in (torch.bfloat16, torch.float32)
    is_aligned = x_TK.ndim == 2 and x_TK.stride(1) == 1 and x_TK.stride(0) % 8 == 0 and x_TK.data_ptr() % 16 == 0
    outputs, inputs = weight_NK.shape
    is_whole = outputs >= LEAST_OUTPUTS and outputs % OUTPUTS == 0 and inputs % INPUTS == 0
    return is_narrow and is_aligned and is_whole and weight_NK.is_contiguous()
