"""The formula in FP64."""

from torch import Tensor


def gated_norm(o_THD: Tensor, gate_THD: Tensor, weight_D: Tensor, *, eps: float) -> Tensor:
    """Gated rows [T, H * D] in o's dtype."""
    o = o_THD.double()
    y = weight_D.double() * o / (o.square().mean(-1, keepdim=True) + eps).sqrt() * gate_THD.double().sigmoid()
    return y.to(o_THD.dtype).flatten(1)
