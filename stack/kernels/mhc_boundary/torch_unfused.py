"""The boundary as a chain of tensor operations, rows in blocks that stay in a core's cache (CPU).

T rows, N streams, C channels, M = 2N + N*N coefficients. The Sinkhorn passes run with rows last, [N, N, T], so that
each pass is a handful of vector operations and no sum depends on the number of rows; they run in NumPy, whose calls
cost a third of torch's on arrays this small.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from stack.kernels.mhc_boundary.chain import then_quantized
from stack.kernels.rms_norm.torch_rows import rms_norm
from stack.kernels.row_tiles import pad_rows, tiled_matmul

_BLOCK_ROWS = 64
"""64 rows of 4 x 256 FP32 values are 256 KiB."""


def missing(device: str) -> str | None:
    """NumPy shares memory with CPU tensors alone."""
    return None if device == "cpu" else "its small passes run in NumPy, on the CPU"


class Site(Protocol):
    """One boundary's parameters in FP32."""

    fn_MD: Tensor
    base_M: Tensor
    scale_3: Tensor


def mhc_boundary(
    y_TC: Tensor | None,
    X_TNC: Tensor,
    post_TN: Tensor | None,
    comb_TNN: Tensor | None,
    site: Site,
    norm_weight_C: Tensor,
    *,
    hc_eps: float,
    norm_eps: float,
    iters: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Streams, the next sub-layer's normalised input, and what its own write-back will need."""
    streams_TNC = _write_back(y_TC, X_TNC, post_TN, comb_TNN)
    pre_TN, next_post_TN, next_comb_TNN = _coefficients(streams_TNC, site, hc_eps, norm_eps, iters)
    x_TC = X_TNC.new_empty(X_TNC.shape[0], X_TNC.shape[2])
    for rows in _blocks(X_TNC):
        collapsed = torch.bmm(pre_TN[rows, None], streams_TNC[rows].float())[:, 0].to(X_TNC.dtype)
        x_TC[rows] = rms_norm(collapsed, norm_weight_C, eps=norm_eps)
    return streams_TNC, x_TC, next_post_TN, next_comb_TNN


mhc_boundary_quant = then_quantized(mhc_boundary)


def mhc_final(
    y_TC: Tensor | None,
    X_TNC: Tensor,
    post_TN: Tensor | None,
    comb_TNN: Tensor | None,
    norm_weight_C: Tensor,
    *,
    norm_eps: float,
) -> tuple[Tensor, Tensor]:
    """The normalised mean of the streams, and the mean itself."""
    _, mean_TC = mhc_mean(y_TC, X_TNC, post_TN, comb_TNN)
    return rms_norm(mean_TC, norm_weight_C, eps=norm_eps), mean_TC


def mhc_mean(
    y_TC: Tensor | None, X_TNC: Tensor, post_TN: Tensor | None, comb_TNN: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The streams after the write-back, and their mean."""
    streams_TNC = _write_back(y_TC, X_TNC, post_TN, comb_TNN)
    return streams_TNC, _stream_mean(streams_TNC)


def _stream_mean(streams_TNC: Tensor) -> Tensor:
    first_TC, *rest = streams_TNC.float().unbind(1)
    total_TC = first_TC.clone()
    for stream_TC in rest:
        total_TC += stream_TC
    return (total_TC / streams_TNC.shape[1]).to(streams_TNC.dtype)


def _blocks(X_TNC: Tensor) -> Iterator[slice]:
    return (slice(begin, begin + _BLOCK_ROWS) for begin in range(0, X_TNC.shape[0], _BLOCK_ROWS))


def _write_back(y_TC: Tensor | None, X_TNC: Tensor, post_TN: Tensor | None, comb_TNN: Tensor | None) -> Tensor:
    if y_TC is None:
        return X_TNC
    assert post_TN is not None and comb_TNN is not None
    streams_TNC = torch.empty_like(X_TNC)
    for rows in _blocks(X_TNC):
        mixed = torch.bmm(comb_TNN[rows].transpose(1, 2), X_TNC[rows].float())
        streams_TNC[rows] = mixed.add_(post_TN[rows, :, None] * y_TC[rows, None].float())
    return streams_TNC


def _coefficients(
    streams_TNC: Tensor, site: Site, hc_eps: float, norm_eps: float, iters: int
) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, n, _ = streams_TNC.shape
    z_TD = pad_rows(streams_TNC.flatten(1).float(), 16)
    mixed_TM = tiled_matmul(z_TD, site.fn_MD) * torch.rsqrt(z_TD.square().mean(-1, keepdim=True) + norm_eps)
    mixed_MT = mixed_TM.t().contiguous()
    scale, base_M1 = site.scale_3, site.base_M[:, None]
    pre_NT = torch.sigmoid(mixed_MT[:n] * scale[0] + base_M1[:n]) + hc_eps
    post_NT = torch.sigmoid(mixed_MT[n : 2 * n] * scale[1] + base_M1[n : 2 * n]) * 2
    logits_NNT = (mixed_MT[2 * n :] * scale[2] + base_M1[2 * n :]).view(n, n, -1)
    comb_NNT = _sinkhorn(logits_NNT, hc_eps, iters)
    return (
        pre_NT.t()[:num_rows].contiguous(),
        post_NT.t()[:num_rows].contiguous(),
        comb_NNT.permute(2, 0, 1)[:num_rows].contiguous(),
    )


def _sinkhorn(logits_IJT: Tensor, eps: float, iters: int) -> Tensor:
    exp_IJT = (logits_IJT - logits_IJT.amax(1, keepdim=True)).exp_()
    comb_IJT = exp_IJT.numpy()
    comb_IJT /= comb_IJT.sum(1, keepdims=True)
    comb_IJT += eps
    sum_I1T, sum_1JT = comb_IJT[:, :1].copy(), comb_IJT[:1].copy()
    for axis, sums in (((0, sum_1JT), (1, sum_I1T)) * iters)[:-1]:
        np.add.reduce(comb_IJT, axis, keepdims=True, out=sums)
        sums += eps
        comb_IJT /= sums
    return exp_IJT
