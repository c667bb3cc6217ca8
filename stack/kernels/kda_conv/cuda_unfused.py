"""The chain: convolution and SiLU, a packed copy, a split copy of each part, then a norm kernel each for q and k.

What one fused kernel saves is measured against this. Results are those of `cuda_fused`, bit for bit.
"""

from ctypes import c_int64
from pathlib import Path
from typing import TYPE_CHECKING

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only
from stack.kernels.kda_conv.cuda_fused import convolve

if TYPE_CHECKING:
    from torch import Tensor

missing = hopper_only

_NORM = CudaKernel(Path(__file__).with_name("conv.cu"), "kda_head_norm")


def kda_conv(
    x_TX: "Tensor",
    weight_X4: "Tensor",
    conv_SHCDW: "Tensor",
    slot_R: "Tensor",
    start_R1: "Tensor",
    request_T: "Tensor",
    position_T: "Tensor",
    has_state_R: "Tensor",
) -> "tuple[Tensor, Tensor, Tensor]":
    """See the op's contract."""
    import torch

    parts = convolve(x_TX, weight_X4, conv_SHCDW, slot_R, start_R1, request_T, has_state_R, norm=False)
    q, k, v = (part.contiguous() for part in torch.stack(parts, 1).unbind(1))
    return _normed(q, q.shape[-1] ** -0.5), _normed(k, 1.0), v


def _normed(x_THD: "Tensor", scale: float) -> "Tensor":
    import torch

    y_THD, head_rows = torch.empty_like(x_THD), x_THD.shape[0] * x_THD.shape[1]
    _NORM.launch((-(-head_rows // 16), 1, 1), 256, [x_THD, y_THD, c_int64(head_rows), scale])
    return y_THD
