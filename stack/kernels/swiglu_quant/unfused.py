"""The chain of two operations, with the device's own kernels; runs on every device."""

import torch
from torch import Tensor

from stack.kernels.quantized import QuantizedRows


def swiglu_quant(gate_up_TI2: Tensor, *, limit: float | None) -> QuantizedRows:
    """Codes and scales of the gated rows."""
    if gate_up_TI2.is_cuda:
        from stack.kernels.quantize_rows.triton_group import quantize_rows
        from stack.kernels.swiglu.triton_rows import swiglu
    else:
        from stack.kernels.quantize_rows.torch_group import quantize_rows
        from stack.kernels.swiglu.torch_rows import swiglu
    return quantize_rows(swiglu(gate_up_TI2, limit=limit).to(torch.bfloat16))
