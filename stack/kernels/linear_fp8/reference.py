"""The contract group by group: codes multiplied, then scaled, then summed, in FP64."""

import torch
from torch import Tensor

from stack.kernels.quantized import GROUP, Fp8Weight, QuantizedRows


def linear_fp8(x: QuantizedRows, weight: Fp8Weight, *, out_dtype: torch.dtype) -> Tensor:
    """The product [T, N]."""
    num_outputs, num_inputs = weight.codes_NK.shape
    block_N = torch.arange(num_outputs, device=weight.codes_NK.device) // GROUP
    y_TN = torch.zeros(x.codes_TK.shape[0], num_outputs, dtype=torch.float64, device=x.codes_TK.device)
    for group in range((num_inputs + GROUP - 1) // GROUP):
        columns = slice(group * GROUP, (group + 1) * GROUP)
        product = x.codes_TK[:, columns].double() @ weight.codes_NK[:, columns].double().t()
        y_TN += product * x.scale_TG[:, group, None].double() * weight.scale_NK[block_N, group].double()
    return y_TN.to(out_dtype)
