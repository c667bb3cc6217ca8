"""The boundary by clusters of eight blocks that keep eight tokens' streams on the chip; `cluster.cu` says how.

Each stream is read and written once, and `fn` stays in registers. Serves four streams in BF16, widths up to 4,096 and
rows that 16-byte copies can read. The norm is taken from FP32 products of the streams, before the collapsed row is
rounded, so it differs from the contract's in its last bits (relative error below 2^-15 for streams that do not cancel).
`fn` is multiplied as one or two BF16 terms, as in `boundary.cu`. T rows, N streams, C channels.
"""

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only
from stack.kernels.mhc_boundary.chain import then_quantized
from stack.kernels.mhc_boundary.cuda_fused import bf16_terms, boundary_call, mhc_final, mhc_mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from stack.kernels.mhc_boundary.torch_unfused import Site

__all__ = ["mhc_boundary", "mhc_boundary_quant", "mhc_final", "mhc_mean", "missing"]

missing = hopper_only

RANKS, TOKENS, THREADS = 8, 8, 512
SHARED_BYTES = 4 * (8 * 5184 + 640) + 2 * 16 * 8 * 144 + 4 * 8 * (8 * 64 + 80) + 32 * 96 + 64
_KERNELS = {
    terms: CudaKernel(Path(__file__).with_name("cluster.cu"), f"mhc_cluster_{terms}", SHARED_BYTES, cluster=RANKS)
    for terms in (1, 2)
}


class ClusterArguments(ctypes.Structure):
    """`ClusterArguments` of the source."""

    _fields_: ClassVar[Any] = (
        [
            (name, ctypes.c_void_p)
            for name in "y streams post comb fn base scale norm_weight x next_post next_comb".split()
        ]
        + [(name, ctypes.c_int64) for name in ("y_row", "streams_row")]
        + [(name, ctypes.c_int) for name in "tokens channels iters weight_bf16".split()]
        + [(name, ctypes.c_float) for name in ("hc_eps", "norm_eps")]
    )


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
    arguments, results = boundary_call(
        ClusterArguments, y_TC, X_TNC, post_TN, comb_TNN, site, norm_weight_C, (hc_eps, norm_eps, iters)
    )
    _check_copies(X_TNC, y_TC, post_TN, comb_TNN)
    blocks = _clusters(X_TNC.shape[0], X_TNC.device) * RANKS
    _KERNELS[bf16_terms(site.fn_MD).shape[0]].launch((blocks, 1, 1), THREADS, [arguments])
    return results


mhc_boundary_quant = then_quantized(mhc_boundary)


def _check_copies(*parts: "Tensor | None") -> None:
    for part in parts:
        if part is not None and (part.data_ptr() % 16 or part.stride(0) * part.element_size() % 16):
            raise ValueError("cuda_cluster takes rows that start at multiples of 16 bytes")


def _clusters(tokens: int, device: "torch.device") -> int:
    """Clusters that the device holds at once, one block a multiprocessor, or as many as there are tiles."""
    import torch

    return min(-(-tokens // TOKENS), torch.cuda.get_device_properties(device).multi_processor_count // RANKS)
