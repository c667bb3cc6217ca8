"""The chain: convolution and SiLU, a packed copy, a split copy of each part, then a norm kernel each for q and k.

What one fused kernel saves is measured against this. Results are those of `cuda_fused`, bit for bit.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.devices import hopper_only
from stack.kernels.kda_conv.cuda_fused import convolve

missing = hopper_only

_ROWS = 32


@triton.jit
def _norm(x, y, rows, gain, D: tl.constexpr, R: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    at = row[:, None] * D + tl.arange(0, D)[None, :]
    values = tl.load(x + at, mask=(row < rows)[:, None], other=0.0).to(tl.float32)
    root = tl.sqrt_rn(tl.sum(values * values, axis=1) + 1e-6)[:, None]
    tl.store(
        y + at,
        (tl.div_rn(values, tl.broadcast_to(root, values.shape)) * gain).to(y.dtype.element_ty),
        mask=(row < rows)[:, None],
    )


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
    """See the op's contract."""
    parts = convolve(x_TX, weight_X4, conv_SHCDW, slot_R, start_R1, request_T, has_state_R, norm=False)
    q, k, v = (part.contiguous() for part in torch.stack(parts, 1).unbind(1))
    return _normed(q, q.shape[-1] ** -0.5), _normed(k, 1.0), v


def _normed(x_THD: Tensor, gain: float) -> Tensor:
    y_THD = torch.empty_like(x_THD)
    rows = x_THD.shape[0] * x_THD.shape[1]
    if rows:
        grid: Any = (triton.cdiv(rows, _ROWS),)
        _norm[grid](x_THD, y_THD, rows, gain, D=x_THD.shape[2], R=_ROWS, num_warps=4)
    return y_THD
