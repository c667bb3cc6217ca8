"""The short convolution over packed requests with tensor operations (CPU).

Rows are extended by each request's three earlier inputs, so that the four taps are four shifted views.
T rows, R requests, X = 3 * H * D channels, W = 3 kept inputs.
"""

import torch
from torch import Tensor

from stack.kernels.delta_rule import convolve, normalize, split_heads

_BLOCK_ROWS = 128
_KEPT = 3


def kda_conv(
    x_TX: Tensor,
    weight_X4: Tensor,
    conv_SHCDW: Tensor,
    slot_R: Tensor,
    start_R1: Tensor,
    request_T: Tensor,
    position_T: Tensor,
    has_state_R: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised q and k, and v [T, H, D]; the windows of live slots advance."""
    num_rows, head_dim = x_TX.shape[0], conv_SHCDW.shape[3]
    u_TX = x_TX.new_zeros(num_rows, x_TX.shape[1], dtype=torch.float32)
    starts, resumes = start_R1.tolist(), has_state_R.tolist()
    for request, slot in enumerate(slot_R.tolist()):
        begin, end = starts[request], starts[request + 1]
        if slot == 0 or begin == end:
            continue
        window_WX = x_TX.new_zeros(_KEPT, x_TX.shape[1])
        if resumes[request]:
            window_WX.copy_(read_windows(conv_SHCDW[slot][None])[0])
        inputs = torch.cat((window_WX, x_TX[begin:end]))
        for first in range(0, end - begin, _BLOCK_ROWS):
            count = min(_BLOCK_ROWS, end - begin - first)
            taps = [inputs[first + back : first + back + count] for back in range(4)]
            u_TX[begin + first : begin + first + count] = convolve(taps, weight_X4)
        write_windows(conv_SHCDW[slot][None], inputs[None, -_KEPT:])
    q, k, v = split_heads(u_TX.to(x_TX.dtype), head_dim)
    q, k = normalize(q.float()) * head_dim**-0.5, normalize(k.float())
    return q.to(x_TX.dtype), k.to(x_TX.dtype), v


def read_windows(conv_RHCDW: Tensor) -> Tensor:
    """Windows as inputs [R, W, X], oldest first, channels in the order q, k, v."""
    return conv_RHCDW.permute(0, 4, 2, 1, 3).flatten(2)


def write_windows(conv_RHCDW: Tensor, inputs_RWX: Tensor) -> None:
    """The inverse of `read_windows`, into the view."""
    count, heads, parts, head_dim, kept = conv_RHCDW.shape
    conv_RHCDW.copy_(inputs_RWX.view(count, kept, parts, heads, head_dim).permute(0, 3, 2, 4, 1))
