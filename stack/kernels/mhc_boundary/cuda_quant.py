"""`cuda_fused`, and where the sub-layer wants its input quantised the same launch writes codes and scales, too.

A row's codes are made of its rounded values, which the finishing block still holds: what another launch would read
again. Without quantisation it is `cuda_fused`.
T rows, N streams, C channels.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only
from stack.kernels.mhc_boundary.cuda_fused import (
    BoundaryArguments,
    boundary_call,
    launch_boundary,
    mhc_boundary,
    mhc_final,
    mhc_mean,
)

if TYPE_CHECKING:
    from torch import Tensor

    from stack.kernels.mhc_boundary.torch_unfused import Site
    from stack.kernels.quantized import QuantizedRows

__all__ = ["mhc_boundary", "mhc_boundary_quant", "mhc_final", "mhc_mean", "missing"]

missing = hopper_only

_BOUNDARY = CudaKernel(Path(__file__).with_name("boundary.cu"), "mhc_boundary_quant")


def mhc_boundary_quant(
    y_TC: "Tensor | None",
    X_TNC: "Tensor",
    post_TN: "Tensor | None",
    comb_TNN: "Tensor | None",
    site: "Site",
    norm_weight_C: "Tensor",
    *,
    hc_eps: float,
    norm_eps: float,
    iters: int,
    quantize_rows: "Callable[..., QuantizedRows]",
) -> "tuple[Tensor, Tensor, Tensor, Tensor, QuantizedRows]":
    """See the op's contract. The streams are updated in place; `quantize_rows` is not called."""
    import torch

    from stack.kernels.quantized import GROUP, QuantizedRows, empty_scales

    tokens, _, channels = X_TNC.shape
    if channels % GROUP:
        raise ValueError(f"cuda_quant takes a multiple of {GROUP} channels, not {channels}; use cuda_fused")
    arguments, results = boundary_call(
        BoundaryArguments, y_TC, X_TNC, post_TN, comb_TNN, site, norm_weight_C, (hc_eps, norm_eps, iters)
    )
    codes_TC = torch.empty((tokens, channels), dtype=torch.float8_e4m3fn, device=X_TNC.device)
    scale_TG = empty_scales(tokens, channels // GROUP, X_TNC.device)
    arguments.codes, arguments.code_scales = codes_TC.data_ptr(), scale_TG.data_ptr()
    arguments.scale_group = scale_TG.stride(1)
    launch_boundary(_BOUNDARY, arguments, X_TNC, site)
    return *results, QuantizedRows(codes_TC, scale_TG)
