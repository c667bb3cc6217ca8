"""Norm, then an indexed store through the layer's view of the pool (CPU)."""

import torch
from torch import Tensor

from stack.kernels.quantized import FP8_MAX
from stack.kernels.rms_norm.torch_rows import rms_norm


def latent_write(kv_TL: Tensor, weight_L: Tensor, latent_NPL: Tensor, write_T: Tensor, *, eps: float) -> Tensor:
    """The normalised rows [T, L] in kv's dtype; real rows are also in their pages, cast to the pages' dtype."""
    c_TL = rms_norm(kv_TL, weight_L, eps=eps)
    real = write_T > 0
    target = write_T[real]
    page, offset = target // latent_NPL.shape[1], target % latent_NPL.shape[1]
    rows = c_TL[real]
    if latent_NPL.dtype == torch.float8_e4m3fn:
        codes = rows.float().clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        latent_NPL.view(torch.uint8)[page, offset] = codes.view(torch.uint8)
    else:
        latent_NPL[page, offset] = rows.to(latent_NPL.dtype)
    return c_TL
