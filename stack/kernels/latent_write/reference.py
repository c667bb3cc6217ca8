"""One row at a time."""

import torch
from torch import Tensor

from stack.kernels.rms_norm.reference import rms_norm


def latent_write(kv_TL: Tensor, weight_L: Tensor, latent_NPL: Tensor, write_T: Tensor, *, eps: float) -> Tensor:
    """The normalised rows [T, L] in kv's dtype; real rows are also in their pages, cast to the pages' dtype."""
    c_TL = rms_norm(kv_TL, weight_L, eps=eps)
    for row, target in enumerate(write_T.tolist()):
        if target:
            value = c_TL[row].float()
            if latent_NPL.dtype == torch.float8_e4m3fn:
                value = value.clamp(-448.0, 448.0)
            latent_NPL[target // latent_NPL.shape[1], target % latent_NPL.shape[1]] = value.to(latent_NPL.dtype)
    return c_TL
