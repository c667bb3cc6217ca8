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


def readers(k: Tensor, q: Tensor, decay: Tensor) -> Tensor:
    """What `step` reads a state with: decayed key and query rows [..., 2, K]."""
    return torch.stack((k * decay, q * decay), -2)


def step(
    state_HKV: Tensor, readers_H2K: Tensor, k_HK1: Tensor, v_HV: Tensor, decay_HK1: Tensor, beta_H1: Tensor
) -> Tensor:
    """Advance a state in place by one token; returns [H, 2, V]: the update u, and what the query saw of the old state.

    `decay_HK1` is exp(g), `readers_H2K` come from `readers`. One pass over the old state serves both products:
    S'k = S_old' (decay k) and S_new' q = S_old' (decay q) + (k . q) u, which `outputs` adds up.
    """
    seen_H2V = torch.bmm(readers_H2K, state_HKV)
    u_HV = seen_H2V[:, 0].sub_(v_HV).mul_(beta_H1).neg_()
    state_HKV.mul_(decay_HK1).addcmul_(k_HK1, u_HV[:, None])
    return seen_H2V


def outputs(steps: Tensor, k: Tensor, q: Tensor) -> Tensor:
    """Outputs [..., V] from what `step` returned [..., 2, V]."""
    return steps[..., 1, :] + (k * q).sum(-1, keepdim=True) * steps[..., 0, :]
