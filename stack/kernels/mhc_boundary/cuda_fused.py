"""The whole boundary in one launch and one pass over the streams; `boundary.cu` says how.

Serves four streams in BF16 and widths up to 4,096. `fn` is multiplied as one or two BF16 terms: one where its FP32
values are BF16 values, else the second carries what the first dropped (relative error 2^-17).
T rows, N streams, C channels.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only
from stack.kernels.mhc_boundary.chain import then_quantized

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from stack.kernels.mhc_boundary.torch_unfused import Site

missing = hopper_only

_SOURCE = Path(__file__).with_name("boundary.cu")
_BOUNDARY = CudaKernel(_SOURCE, "mhc_boundary")
_WRITE_BACK = CudaKernel(_SOURCE, "mhc_write_back")

THREADS, MIX_TOKENS, MIX_CHANNELS, END_TOKENS, BALANCE_TOKENS = 256, 32, 256, 8, 64
SLAB = 512
"""Tokens whose streams (16 MiB at 4,096 channels) pass through the L2 cache together; a multiple of 32."""
MAX_SLABS = 4096
MAX_CHANNELS = 4096


class BoundaryArguments(ctypes.Structure):
    """`BoundaryArguments` of the source."""

    _fields_: ClassVar[Any] = (
        [
            (n, ctypes.c_void_p)
            for n in "y streams post comb fn base scale norm_weight x next_post next_comb sums finished".split()
        ]
        + [(n, ctypes.c_int64) for n in ("y_row", "streams_row")]
        + [(n, ctypes.c_int) for n in "tokens channels terms iters weight_bf16 slab splits".split()]
        + [(n, ctypes.c_float) for n in ("hc_eps", "norm_eps")]
        + [("codes", ctypes.c_void_p), ("code_scales", ctypes.c_void_p), ("scale_group", ctypes.c_int64)]
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
        BoundaryArguments, y_TC, X_TNC, post_TN, comb_TNN, site, norm_weight_C, (hc_eps, norm_eps, iters)
    )
    launch_boundary(_BOUNDARY, arguments, X_TNC, site)
    return results


mhc_boundary_quant = then_quantized(mhc_boundary)


def launch_boundary(kernel: CudaKernel, arguments: Any, X_TNC: "Tensor", site: "Site") -> None:
    """One launch over the streams, with the work space that it needs."""
    import torch

    tokens, streams, channels = X_TNC.shape
    if not tokens:
        return
    splits = -(-channels // MIX_CHANNELS)
    sums = torch.empty((tokens, splits, 2 * streams + streams * streams + 1), dtype=torch.float32, device=X_TNC.device)
    arguments.sums, arguments.finished = sums.data_ptr(), _counters(X_TNC.device).data_ptr()
    arguments.terms, arguments.slab, arguments.splits = bf16_terms(site.fn_MD).shape[0], SLAB, splits
    kernel.launch((_blocks(tokens, splits), 1, 1), THREADS, [arguments])


def boundary_call(
    kind: "type[ctypes.Structure]",
    y_TC: "Tensor | None",
    X_TNC: "Tensor",
    post_TN: "Tensor | None",
    comb_TNN: "Tensor | None",
    site: "Site",
    norm_weight_C: "Tensor",
    constants: tuple[float, float, int],
) -> "tuple[Any, tuple[Tensor, Tensor, Tensor, Tensor]]":
    """The fields that the boundary's kernels share, in a `kind`, and the results that they will write.

    `constants` are hc_eps, norm_eps and iters. Raises ValueError for streams that the kernels do not serve.
    """
    import torch

    check_streams(X_TNC, y_TC)
    tokens, streams, channels = X_TNC.shape
    x_TC = torch.empty((tokens, channels), dtype=X_TNC.dtype, device=X_TNC.device)
    next_post = torch.empty((tokens, streams), dtype=torch.float32, device=X_TNC.device)
    next_comb = torch.empty((tokens, streams, streams), dtype=torch.float32, device=X_TNC.device)
    hc_eps, norm_eps, iters = constants
    arguments: Any = kind(
        streams=X_TNC.data_ptr(), fn=bf16_terms(site.fn_MD).data_ptr(), base=site.base_M.data_ptr(),
        scale=site.scale_3.data_ptr(), norm_weight=norm_weight_C.data_ptr(), x=x_TC.data_ptr(),
        next_post=next_post.data_ptr(), next_comb=next_comb.data_ptr(), streams_row=X_TNC.stride(0), tokens=tokens,
        channels=channels, iters=iters, weight_bf16=norm_weight_C.dtype == torch.bfloat16, hc_eps=hc_eps,
        norm_eps=norm_eps,
    )  # fmt: skip
    if y_TC is not None and post_TN is not None and comb_TNN is not None:
        arguments.y, arguments.post, arguments.comb = y_TC.data_ptr(), post_TN.data_ptr(), comb_TNN.data_ptr()
        arguments.y_row = y_TC.stride(0)
    return arguments, (X_TNC, x_TC, next_post, next_comb)


def mhc_final(
    y_TC: "Tensor | None",
    X_TNC: "Tensor",
    post_TN: "Tensor | None",
    comb_TNN: "Tensor | None",
    norm_weight_C: "Tensor",
    *,
    norm_eps: float,
) -> "tuple[Tensor, Tensor]":
    """The normalised mean of the streams, and the mean itself."""
    from stack.kernels.rms_norm.triton_rows import rms_norm

    mean_TC = write_back(y_TC, X_TNC, post_TN, comb_TNN, keep=False, mean=True)
    assert mean_TC is not None
    return rms_norm(mean_TC, norm_weight_C, eps=norm_eps), mean_TC


def mhc_mean(
    y_TC: "Tensor | None", X_TNC: "Tensor", post_TN: "Tensor | None", comb_TNN: "Tensor | None"
) -> "tuple[Tensor, Tensor]":
    """The streams after the write-back (in place), and their mean."""
    mean_TC = write_back(y_TC, X_TNC, post_TN, comb_TNN, keep=y_TC is not None, mean=True)
    assert mean_TC is not None
    return X_TNC, mean_TC


def write_back(
    y_TC: "Tensor | None",
    X_TNC: "Tensor",
    post_TN: "Tensor | None",
    comb_TNN: "Tensor | None",
    *,
    keep: bool,
    mean: bool,
) -> "Tensor | None":
    """X' into the streams where `keep`; their mean [T, C] where `mean`."""
    import torch

    check_streams(X_TNC, y_TC)
    tokens, _, channels = X_TNC.shape
    mean_TC = torch.empty((tokens, channels), dtype=X_TNC.dtype, device=X_TNC.device) if mean else None
    strides = (ctypes.c_int64(0 if y_TC is None else y_TC.stride(0)), ctypes.c_int64(X_TNC.stride(0)))
    _WRITE_BACK.launch(
        (tokens, 1, 1), 256, [y_TC, strides[0], X_TNC, strides[1], post_TN, comb_TNN, mean_TC, channels, keep]
    )
    return mean_TC


def check_streams(X_TNC: "Tensor", y_TC: "Tensor | None") -> None:
    """Raises ValueError for streams that the kernels do not serve."""
    import torch

    channels = X_TNC.shape[2]
    if X_TNC.dtype != torch.bfloat16 or (y_TC is not None and y_TC.dtype != torch.bfloat16) or X_TNC.shape[1] != 4:
        raise ValueError("the mHC kernels take four bfloat16 streams and a bfloat16 output")
    if X_TNC.stride(2) != 1 or X_TNC.stride(1) != channels or channels % 8:
        raise ValueError("the mHC kernels take streams that lie side by side in a row, of a multiple of 8 channels")
    if channels > MAX_CHANNELS or X_TNC.shape[0] > SLAB * MAX_SLABS:
        raise ValueError(f"the mHC kernels take at most {MAX_CHANNELS} channels and {SLAB * MAX_SLABS} rows")


def _blocks(tokens: int, splits: int) -> int:
    """Work items of a call: mixing and finishing blocks of full slabs, then of the last one."""
    full, rest = (tokens - 1) // SLAB, (tokens - 1) % SLAB + 1
    each = SLAB // MIX_TOKENS * splits + SLAB // END_TOKENS + SLAB // BALANCE_TOKENS
    return full * each + -(-rest // MIX_TOKENS) * splits + -(-rest // END_TOKENS) + -(-rest // BALANCE_TOKENS)


@cache
def _counters(device: "torch.device") -> "Tensor":
    """A counter a slab. Every launch leaves them zero; calls on one device must follow each other."""
    import torch

    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("mhc_boundary must run once on this device before it is captured in a graph")
    return torch.zeros(MAX_SLABS, dtype=torch.int32, device=device)


def bf16_terms(fn_MD: "Tensor") -> "Tensor":
    """`fn` as BF16 terms [1 or 2, M, D]; computed once a parameter (it synchronises, so before any capture)."""
    import torch

    cached: Tensor | None = _known_terms().get(fn_MD)
    if cached is None:
        high = fn_MD.to(torch.bfloat16)
        rest = fn_MD.float() - high.float()
        cached = high[None].contiguous() if not bool(rest.any()) else torch.stack((high, rest.to(torch.bfloat16)))
        _known_terms()[fn_MD] = cached
    return cached


@cache
def _known_terms() -> Any:
    from torch.utils.weak import WeakTensorKeyDictionary

    return WeakTensorKeyDictionary()
