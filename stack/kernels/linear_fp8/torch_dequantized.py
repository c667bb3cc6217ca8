"""Dequantise both operands and multiply in fixed row tiles (CPU)."""

import torch
from torch import Tensor

from stack.kernels.quantized import GROUP, Fp8Weight, QuantizedRows
from stack.kernels.row_tiles import tiled_matmul


def missing(device: str) -> str | None:
    """The whole dequantised weight is written at each call."""
    return None if device == "cpu" else "dequantising the weight at each call is for the CPU"


def linear_fp8(x: QuantizedRows, weight: Fp8Weight, *, out_dtype: torch.dtype) -> Tensor:
    """The product [T, N] in FP32, rounded once to `out_dtype`."""
    rows_TK = x.codes_TK.float() * x.scale_TG.repeat_interleave(GROUP, 1)[:, : x.codes_TK.shape[1]]
    return tiled_matmul(rows_TK, dequantized(weight)).to(out_dtype)


def dequantized(weight: Fp8Weight) -> Tensor:
    """The weight in FP32 [N, K]."""
    num_outputs, num_inputs = weight.codes_NK.shape
    scale = weight.scale_NK.repeat_interleave(GROUP, 0)[:num_outputs].repeat_interleave(GROUP, 1)[:, :num_inputs]
    return weight.codes_NK.float().mul_(scale)
