"""The two references in a row."""

import torch
from torch import Tensor

from stack.kernels.quantize_rows.reference import quantize_rows
from stack.kernels.quantized import QuantizedRows
from stack.kernels.swiglu.reference import swiglu


def swiglu_quant(gate_up_TI2: Tensor, *, limit: float | None) -> QuantizedRows:
    """Codes and scales of the gated rows."""
    return quantize_rows(swiglu(gate_up_TI2.float(), limit=limit).to(torch.bfloat16))
