"""The FP8 form of indexer rows, exact to the bit on every device.

A row of D = 2^n values is rounded to BF16, rotated by the normalised Hadamard matrix (butterflies of stride 1, 2, 4 ..
D / 2 in FP32: (a, b) -> (a + b, a - b); then times FP32 D^-0.5), rounded to BF16 again, and coded in E4M3 with one
power-of-two scale 2^ceil(log2(max(max|x|, 1e-4) / 448)), so the quotient is exact before its one rounding.
"""

import torch
from torch import Tensor

from stack.kernels.quantized import FP8_MAX

_FLOOR = 1e-4


def rotate(x: Tensor) -> Tensor:
    """The rotated row in BF16; the last dimension must be a power of two."""
    width = x.shape[-1]
    y, stride = x.to(torch.bfloat16).float(), 1
    while stride < width:
        pairs = y.view(*x.shape[:-1], width // (2 * stride), 2, stride)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        y = torch.stack((a + b, a - b), -2).view(x.shape)
        stride *= 2
    return (y * width**-0.5).to(torch.bfloat16)


def quantize_index_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate and code rows `[..., D]`: E4M3 codes of the same shape and FP32 scales `[...]`."""
    y = rotate(x).float()
    ratio = y.abs().amax(-1).clamp(min=_FLOOR) / FP8_MAX
    mantissa, exponent = torch.frexp(ratio)
    exponent = exponent - (mantissa == 0.5).int()
    scale = torch.ldexp(torch.ones_like(ratio), exponent)
    return (y / scale[..., None]).to(torch.float8_e4m3fn), scale
