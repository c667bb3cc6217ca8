"""The boundary by groups of blocks that hold tokens' streams on the chip and exchange sums through a ring; `ring.cu`
says how.

Each stream is read and written once, 80 KB a token, and `fn` stays in registers: its 786 KB read anew for every few
tokens would be more than the tokens' own bytes, so a block keeps its channels and sums travel. Serves four streams in
BF16, widths up to 4,096 and rows that 16-byte copies can read. The norm is taken from FP32 products of the streams,
before the collapsed row is rounded, so it differs from the contract's in its last bits (relative error below 2^-15 for
streams that do not cancel).
`fn` is multiplied as one or two BF16 terms, as in `boundary.cu`. Calls on one device must follow each other.
T rows, N streams, C channels.
"""

import ctypes
from collections.abc import Callable
from functools import cache
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

RANKS = 8
"""Blocks that share a token: 8 of 512 channels, one a multiprocessor, or 16 of 256, two a multiprocessor."""
AHEAD = 3
"""Tiles that are on their way to the chip; 3 with 8 ranks and 2 with 16 fill the shared memory."""
PASSING = 0
"""1: the streams are written as what will not be read soon."""
EARLY = 0
"""1: sums of other blocks are asked for before a turn's sending and collapse, and looked at behind them."""
SKIP_FOR_TIMING = 0
"""Parts left out, as bits, for `tools.gpu.micro.parts` to time what is left; results are wrong unless it is 0."""

TOKENS, QUADS, RING = 8, 12, 8


class RingArguments(ctypes.Structure):
    """`RingArguments` of the source."""

    _fields_: ClassVar[Any] = (
        [
            (name, ctypes.c_void_p)
            for name in "y streams post comb fn base scale norm_weight x next_post next_comb ring turns".split()
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
    call = (y_TC, X_TNC, post_TN, comb_TNN, site, norm_weight_C, (hc_eps, norm_eps, iters))
    return in_groups(_kernel, RANKS, 4096 // RANKS, *call)


mhc_boundary_quant = then_quantized(mhc_boundary)


def in_groups(
    kernel: "Callable[[int], CudaKernel]",
    ranks: int,
    threads: int,
    y_TC: "Tensor | None",
    X_TNC: "Tensor",
    post_TN: "Tensor | None",
    comb_TNN: "Tensor | None",
    site: "Site",
    norm_weight_C: "Tensor",
    constants: tuple[float, float, int],
) -> "tuple[Tensor, Tensor, Tensor, Tensor]":
    """One launch of groups of `ranks` blocks that exchange sums; `kernel` by the number of terms of `fn`."""
    arguments, results = boundary_call(RingArguments, y_TC, X_TNC, post_TN, comb_TNN, site, norm_weight_C, constants)
    _check_copies(X_TNC, y_TC, post_TN, comb_TNN)
    most = _groups(X_TNC.device)
    ring, turns = _exchange(X_TNC.device, most, ranks)
    arguments.ring, arguments.turns = ring.data_ptr(), turns.data_ptr()
    blocks = min(-(-X_TNC.shape[0] // TOKENS), most) * ranks
    kernel(bf16_terms(site.fn_MD).shape[0]).launch((blocks, 1, 1), threads, [arguments])
    return results


def _check_copies(*parts: "Tensor | None") -> None:
    for part in parts:
        if part is not None and (part.data_ptr() % 16 or part.stride(0) * part.element_size() % 16):
            raise ValueError("the boundary in groups takes rows that start at multiples of 16 bytes")


@cache
def _kernel(terms: int) -> CudaKernel:
    threads = 4096 // RANKS
    stages = threads * 16 * (4 * (AHEAD + 2) + AHEAD)
    sums = 4 * 2 * threads // 32 * (TOKENS * QUADS * 3 + 2)
    shared = stages + sums + (AHEAD + 1) * TOKENS * 80 + 2 * TOKENS * 20 + 32 * 100
    choices = {"RANKS": RANKS, "AHEAD": AHEAD, "PASSING": PASSING, "EARLY": EARLY, "SKIP": SKIP_FOR_TIMING}
    is_usual = tuple(choices.values()) == (8, 3, 0, 0, 0)
    chosen = () if is_usual else tuple(f"{name}={value}" for name, value in choices.items())
    return CudaKernel(Path(__file__).with_name("ring.cu"), f"mhc_ring_{terms}", shared, RANKS, chosen)


@cache
def _groups(device: "torch.device") -> int:
    """Groups that the device holds at once."""
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count // 8


@cache
def _exchange(device: "torch.device", groups: int, ranks: int) -> "tuple[Tensor, Tensor]":
    """The ring of each group, and the number of the next turn, which no tag in them has, with the blocks at their
    end."""
    import torch

    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("mhc_boundary must run once on this device before it is captured in a graph")
    ring = torch.zeros(groups, RING, TOKENS, ranks, QUADS, 4, dtype=torch.int32, device=device)
    return ring, torch.tensor([1, 0], dtype=torch.int32, device=device)
