"""A few tensor operations over whole rows (CPU and any other device)."""

import torch
from torch import Tensor

from stack.kernels.delta_rule import row_sigmoid


def gated_norm(o_THD: Tensor, gate_THD: Tensor, weight_D: Tensor, *, eps: float) -> Tensor:
    """Gated rows [T, H * D] in o's dtype."""
    o32 = o_THD.float()
    y = o32 * torch.rsqrt(o32.square().mean(-1, keepdim=True) + eps)
    y.mul_(weight_D.float()).mul_(row_sigmoid(gate_THD))
    return y.to(o_THD.dtype).flatten(1)
