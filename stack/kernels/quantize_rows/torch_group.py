"""All groups at once with tensor operations; runs on every device."""

import torch
from torch import Tensor
from torch.nn import functional

from stack.kernels.quantized import FP8_MAX, GROUP, QuantizedRows, empty_scales

TINY = 1e-10


def quantize_rows(x_TK: Tensor) -> QuantizedRows:
    """Codes [T, K] and scales [T, K/128 rounded up]."""
    num_rows, width = x_TK.shape
    groups_TGE = functional.pad(x_TK.float(), (0, -width % GROUP)).view(num_rows, -1, GROUP)
    scale_TG = empty_scales(num_rows, groups_TGE.shape[1], x_TK.device)
    scale_TG.copy_(groups_TGE.abs().amax(-1).clamp(min=TINY) / FP8_MAX)
    scaled = (groups_TGE / scale_TG[..., None]).clamp(-FP8_MAX, FP8_MAX).view(num_rows, -1)
    return QuantizedRows(scaled[:, :width].to(torch.float8_e4m3fn), scale_TG)
