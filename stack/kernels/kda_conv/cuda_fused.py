"""Convolution, SiLU, q/k norm and packing in one pass over the rows; a second, tiny launch moves the windows.

`conv.cu` has both kernels. Serves head width 128, BF16 rows and windows, FP32 taps.
T rows, R requests, X = 3 * H * D channels.
"""

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only

if TYPE_CHECKING:
    from torch import Tensor

missing = hopper_only

_SOURCE = Path(__file__).with_name("conv.cu")
_CONV, _LONG, _WINDOWS = (CudaKernel(_SOURCE, name) for name in ("kda_conv", "kda_conv_long", "kda_move_windows"))
_ROWS, _LONG_ROWS, _THREADS = 32, 64, 256


class ConvArguments(ctypes.Structure):
    """`ConvArguments` of the source."""

    _fields_: ClassVar[Any] = (
        [(name, ctypes.c_void_p) for name in "x weight conv slot start request has_state q k v".split()]
        + [(name, ctypes.c_int64) for name in ("x_row", "conv_slot", "conv_head")]
        + [(name, ctypes.c_int) for name in ("rows", "heads", "norm")]
        + [("scale", ctypes.c_float)]
    )


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
    return convolve(x_TX, weight_X4, conv_SHCDW, slot_R, start_R1, request_T, has_state_R, norm=True)


def convolve(
    x_TX: "Tensor",
    weight_X4: "Tensor",
    conv_SHCDW: "Tensor",
    slot_R: "Tensor",
    start_R1: "Tensor",
    request_T: "Tensor",
    has_state_R: "Tensor",
    *,
    norm: bool,
    long: bool = False,
) -> "tuple[Tensor, Tensor, Tensor]":
    """q, k and v [T, H, D] after convolution and SiLU, q and k normalised where `norm`; windows moved.

    `long` (with `norm`) takes more rows a block, and single instructions for what else is exactly rounded.
    """
    import torch

    rows, (heads, _, head_dim) = x_TX.shape[0], conv_SHCDW.shape[1:4]
    if x_TX.dtype != torch.bfloat16 or conv_SHCDW.dtype != torch.bfloat16 or weight_X4.dtype != torch.float32:
        raise ValueError("the convolution kernel takes bfloat16 rows and windows and float32 taps")
    if head_dim != 128:
        raise ValueError(f"the convolution kernel takes heads of 128 channels, not {head_dim}")
    if x_TX.stride(0) % 8 or x_TX.data_ptr() % 16:
        x_TX = x_TX.contiguous()  # rows that 16-byte loads cannot read; a small model's projections are cut like this
    q, k, v = (torch.empty((rows, heads, head_dim), dtype=x_TX.dtype, device=x_TX.device) for _ in range(3))
    arguments = ConvArguments(
        x=x_TX.data_ptr(), weight=weight_X4.data_ptr(), conv=conv_SHCDW.data_ptr(), slot=slot_R.data_ptr(),
        start=start_R1.data_ptr(), request=request_T.data_ptr(), has_state=has_state_R.data_ptr(), q=q.data_ptr(),
        k=k.data_ptr(), v=v.data_ptr(), x_row=x_TX.stride(0), conv_slot=conv_SHCDW.stride(0),
        conv_head=conv_SHCDW.stride(1), rows=rows, heads=heads, norm=norm, scale=head_dim**-0.5,
    )  # fmt: skip
    groups = 3 * heads * head_dim // 8
    kernel, rows_a_block = (_LONG, _LONG_ROWS) if long else (_CONV, _ROWS)
    kernel.launch((-(-rows // rows_a_block), -(-groups // _THREADS), 1), _THREADS, [arguments])
    _WINDOWS.launch((slot_R.shape[0], 3 * heads, 1), head_dim, [arguments])
    return q, k, v
