"""Norm, cast and scatter in one kernel; one program a row."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.devices import cuda_only

missing = cuda_only


@triton.jit
def _write(kv, weight, latent, write, c, kv_row, page_stride, row_stride, eps, P: tl.constexpr, L: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, L)
    values = tl.load(kv + row * kv_row + columns).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(values * values, axis=0) / L + eps)
    normed = (tl.load(weight + columns).to(tl.float32) * values * scale).to(c.dtype.element_ty)
    tl.store(c + row * L + columns, normed)
    target = tl.load(write + row).to(tl.int64)
    if target > 0:
        kept = (
            tl.minimum(tl.maximum(normed.to(tl.float32), -448.0), 448.0)
            if latent.dtype.element_ty == tl.float8e4nv
            else normed
        )
        tl.store(
            latent + target // P * page_stride + target % P * row_stride + columns, kept.to(latent.dtype.element_ty)
        )


def latent_write(kv_TL: Tensor, weight_L: Tensor, latent_NPL: Tensor, write_T: Tensor, *, eps: float) -> Tensor:
    """See the op's contract. L must be a power of two."""
    rows, width = kv_TL.shape
    c_TL = torch.empty((rows, width), dtype=kv_TL.dtype, device=kv_TL.device)
    if rows:
        grid: Any = (rows,)
        strides = (kv_TL.stride(0), latent_NPL.stride(0), latent_NPL.stride(1))
        _write[grid](
            kv_TL, weight_L, latent_NPL, write_T, c_TL, *strides, eps, P=latent_NPL.shape[1], L=width, num_warps=2
        )
    return c_TL
