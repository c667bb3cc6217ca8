"""The boundary by groups of blocks, as `cuda_ring`, with warps of their own for what passes between blocks and for
copies of whole rows; `ring_roles.cu` says how.

Where one warp waits for another block's sums, the warps that mix and collapse go on, and none of their instructions
move a stream from or to memory. Serves what `cuda_ring` serves, with the same accuracy. T rows, N streams, C channels.
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only
from stack.kernels.mhc_boundary.chain import then_quantized
from stack.kernels.mhc_boundary.cuda_fused import mhc_final, mhc_mean
from stack.kernels.mhc_boundary.cuda_ring import QUADS, TOKENS, in_groups

if TYPE_CHECKING:
    from torch import Tensor

    from stack.kernels.mhc_boundary.torch_unfused import Site

__all__ = ["mhc_boundary", "mhc_boundary_quant", "mhc_final", "mhc_mean", "missing"]

missing = hopper_only

RANKS, MIXING, EXCHANGING = 8, 512, 128
SKIP_FOR_TIMING = 0
"""Parts left out, as bits, for `tools.gpu.micro.parts` to time what is left; results are wrong unless it is 0."""


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
    call = (y_TC, X_TNC, post_TN, comb_TNN, site, norm_weight_C, (hc_eps, norm_eps, iters))
    return in_groups(_kernel, RANKS, MIXING + EXCHANGING, *call)


mhc_boundary_quant = then_quantized(mhc_boundary)


@cache
def _kernel(terms: int) -> CudaKernel:
    rows = (5 * 4 + 2) * (TOKENS // 2) * (4 * MIXING + 64)
    sums = 4 * 2 * MIXING // 32 * TOKENS * QUADS * 3
    shared = rows + sums + 4 * TOKENS * 80 + 2 * TOKENS * 20 + 32 * 100 + MIXING * 2 + 128
    chosen = (f"SKIP={SKIP_FOR_TIMING}",) if SKIP_FOR_TIMING else ()
    return CudaKernel(Path(__file__).with_name("ring_roles.cu"), f"mhc_ring_roles_{terms}", shared, RANKS, chosen)
