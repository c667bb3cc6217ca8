"""One row at a time, over its valid tokens only, in FP64."""

import torch
from torch import Tensor


def sparse_mla(
    q_THL: Tensor, latent_NPL: Tensor, index_TW: Tensor, *, scale: float, num_splits: int | None = None
) -> Tensor:
    """Attended latents [T, H, L] in q's dtype."""
    o_THL = torch.zeros_like(q_THL)
    page_size = latent_NPL.shape[1]
    for row, slots in enumerate(index_TW.tolist()):
        tokens = [slot for slot in slots if slot >= 0]
        if tokens:
            c = torch.stack([latent_NPL[slot // page_size, slot % page_size].double() for slot in tokens])
            p = torch.softmax(q_THL[row].double() @ c.t() * scale, -1)
            o_THL[row] = (p @ c).to(q_THL.dtype)
    return o_THL
