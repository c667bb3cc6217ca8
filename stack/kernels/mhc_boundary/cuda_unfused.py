"""The boundary as two kernels, the write-back of one sub-layer and the entry of the next: the streams are read twice.

What fusing them saves is measured against this. Results are those of `cuda_fused`, bit for bit.
"""

from typing import TYPE_CHECKING

from stack.kernels.devices import hopper_only
from stack.kernels.mhc_boundary import cuda_fused
from stack.kernels.mhc_boundary.chain import then_quantized
from stack.kernels.mhc_boundary.cuda_fused import mhc_final, mhc_mean, write_back

if TYPE_CHECKING:
    from torch import Tensor

    from stack.kernels.mhc_boundary.torch_unfused import Site

__all__ = ["mhc_boundary", "mhc_boundary_quant", "mhc_final", "mhc_mean", "missing"]

missing = hopper_only


def mhc_boundary(
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
) -> "tuple[Tensor, Tensor, Tensor, Tensor]":
    """See the op's contract. The streams are updated in place."""
    if y_TC is not None:
        write_back(y_TC, X_TNC, post_TN, comb_TNN, keep=True, mean=False)
    return cuda_fused.mhc_boundary(
        None, X_TNC, None, None, site, norm_weight_C, hc_eps=hc_eps, norm_eps=norm_eps, iters=iters
    )


mhc_boundary_quant = then_quantized(mhc_boundary)
