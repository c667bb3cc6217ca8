"""The chain of two operations; runs on every device."""

import torch
from torch import Tensor

from stack.kernels.quantize_rows.torch_group import quantize_rows
from stack.kernels.quantized import QuantizedRows
from stack.kernels.swiglu.torch_rows import swiglu


def swiglu_quant(gate_up_TI2: Tensor, *, limit: float | None) -> QuantizedRows:
    """Codes and scales of the gated rows."""
    return quantize_rows(swiglu(gate_up_TI2, limit=limit).to(torch.bfloat16))
