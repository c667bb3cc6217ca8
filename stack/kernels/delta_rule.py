"""The arithmetic of KDA that decode, verify, commit and prefill share on the CPU, so that they agree bit for bit.

R rows, X = 3 * H * D channels (q, k, v), H heads, D = K = V widths, W = 3 kept inputs of the convolution.
All in FP32. `step` is the one place where a recurrent state advances.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from stack.kernels.row_tiles import pad_rows

NORM_EPS = 1e-6
_SIGMOID_ROWS = 16
"""Rows are padded to this, so that no value meets the scalar tail of a vectorised loop."""


def convolve(taps: Sequence[Tensor], weight_X4: Tensor) -> Tensor:
    """SiLU of the four-tap sum [R, X]; the four `taps` are the inputs three, two, one and no step back."""
    weight_4X = weight_X4.float().t().contiguous()
    sum_RX = taps[0].float() * weight_4X[0]
    for tap, weight_X in zip(taps[1:], weight_4X[1:], strict=True):
        sum_RX.addcmul_(tap.float(), weight_X)
    return functional.silu(sum_RX, inplace=True)


def split_heads(u_RX: Tensor, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Convolved channels as q, k, v [R, H, D]."""
    q, k, v = u_RX.view(u_RX.shape[0], 3, -1, head_dim).unbind(1)
    return q, k, v


def normalize(x_RHD: Tensor) -> Tensor:
    """Each head divided by the root of its squared sum plus 1e-6."""
    return x_RHD / (x_RHD.square().sum(-1, keepdim=True) + NORM_EPS).sqrt_()


def log_decay(f_RHD: Tensor, A_log_H: Tensor, dt_bias_HD: Tensor, lower_bound: float) -> Tensor:
    """`g` in (lower_bound, 0), FP32 [R, H, D]."""
    rate_H1 = A_log_H.float().exp()[:, None]
    return row_sigmoid((f_RHD.float() + dt_bias_HD.view_as(f_RHD[0]).float()).mul_(rate_H1)).mul_(lower_bound)


def row_sigmoid(x: Tensor) -> Tensor:
    """Sigmoid in FP32 whose bits do not depend on the number of rows."""
    return torch.sigmoid(pad_rows(x.float(), _SIGMOID_ROWS).contiguous())[: x.shape[0]]


def step(state_BKV: Tensor, k_BK: Tensor, v_BV: Tensor, decay_BK: Tensor, beta_B1: Tensor, q_BK: Tensor) -> Tensor:
    """Advance B states in place by one token and return their outputs [B, V].

    `decay_BK` is exp(g). Both products with the old state share one pass over it: S'k = S_old' (decay k) and
    S_new' q = S_old' (decay q) + (k . q) u.
    """
    rows_B2K = torch.stack((k_BK, q_BK), 1) * decay_BK[:, None]
    seen_B2V = torch.bmm(rows_B2K, state_BKV)
    u_BV = (v_BV - seen_B2V[:, 0]) * beta_B1
    state_BKV.mul_(decay_BK[:, :, None]).addcmul_(k_BK[:, :, None], u_BV[:, None])
    return seen_B2V[:, 1] + (k_BK * q_BK).sum(-1, keepdim=True) * u_BV
