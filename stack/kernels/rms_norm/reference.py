"""The formula in FP64."""

from torch import Tensor

from stack.kernels.rms_norm.chain import then_quantized


def rms_norm(x_TC: Tensor, weight_C: Tensor, *, eps: float) -> Tensor:
    """The normalised rows in x's dtype."""
    x = x_TC.double()
    return (weight_C.double() * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()).to(x_TC.dtype)


rms_norm_quant = then_quantized(rms_norm)
