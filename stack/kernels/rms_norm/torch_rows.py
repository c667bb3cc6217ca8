"""A few tensor operations over whole rows; runs on every device."""

import torch
from torch import Tensor

from stack.kernels.rms_norm.chain import then_quantized


def rms_norm(x_TC: Tensor, weight_C: Tensor, *, eps: float) -> Tensor:
    """The normalised rows in x's dtype."""
    x32_TC = x_TC.float()
    scale_T1 = torch.rsqrt(x32_TC.square().mean(-1, keepdim=True) + eps)
    return (x32_TC * scale_T1 * weight_C.float()).to(x_TC.dtype)


rms_norm_quant = then_quantized(rms_norm)
