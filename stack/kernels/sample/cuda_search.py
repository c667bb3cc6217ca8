"""Sampling on the GPU without a sort and without a host synchronisation, one block a row; `search.cu` says how.

Weights are FP32 and sums FP64, so a cut or a draw that lies within 1e-7 of a border may fall on its other side than in
the reference. Greedy rows cost one reading of their logits. T rows, V tokens.
"""

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only

if TYPE_CHECKING:
    from torch import Tensor

missing = hopper_only

_SOURCE = Path(__file__).with_name("search.cu")
_ROWS, _UNIFORMS = CudaKernel(_SOURCE, "sample_rows"), CudaKernel(_SOURCE, "sample_uniforms")


class SampleArguments(ctypes.Structure):
    """`SampleArguments` of the source."""

    _fields_: ClassVar[Any] = [
        *((name, ctypes.c_void_p) for name in "logits temperature top_k top_p min_p uniform token probs".split()),
        ("row", ctypes.c_int64),
        ("size", ctypes.c_int),
    ]


def sample(
    logits_TV: "Tensor",
    temperature_T: "Tensor",
    top_k_T: "Tensor",
    top_p_T: "Tensor",
    min_p_T: "Tensor",
    uniform_T: "Tensor",
) -> "Tensor":
    """The chosen token of each row, int64 [T]."""
    import torch

    token_T = torch.empty(logits_TV.shape[0], dtype=torch.int64, device=logits_TV.device)
    _launch(logits_TV, (temperature_T, top_k_T, top_p_T, min_p_T), uniform_T, token_T=token_T)
    return token_T


def filtered_probs(
    logits_TV: "Tensor", temperature_T: "Tensor", top_k_T: "Tensor", top_p_T: "Tensor", min_p_T: "Tensor"
) -> "Tensor":
    """The distribution that `sample` draws from, FP32 [T, V]; one-hot for greedy rows."""
    import torch

    probs_TV = torch.empty(logits_TV.shape, dtype=torch.float32, device=logits_TV.device)
    _launch(logits_TV, (temperature_T, top_k_T, top_p_T, min_p_T), None, probs_TV=probs_TV)
    return probs_TV


def uniforms(seed_T: "Tensor", position_T: "Tensor", stream: int) -> "Tensor":
    """FP32 in [0, 1) for each 64-bit seed and position; `stream` separates the uses of one position."""
    import torch

    rows = seed_T.shape[0]
    seed_T, position_T = (x.to(torch.int64).contiguous() for x in (seed_T, position_T))
    uniform_T = torch.empty(rows, dtype=torch.float32, device=seed_T.device)
    _UNIFORMS.launch((-(-rows // 128), 1, 1), 128, [seed_T, position_T, uniform_T, stream, rows])
    return uniform_T


def _launch(
    logits_TV: "Tensor",
    settings: "tuple[Tensor, Tensor, Tensor, Tensor]",
    uniform_T: "Tensor | None",
    *,
    token_T: "Tensor | None" = None,
    probs_TV: "Tensor | None" = None,
) -> None:
    import torch

    if logits_TV.dtype != torch.float32 or logits_TV.stride(1) != 1:
        raise ValueError("cuda_search takes float32 logits whose rows are contiguous")
    kinds = (torch.float32, torch.int32, torch.float32, torch.float32)
    temperature_T, top_k_T, top_p_T, min_p_T = (
        x.to(kind).contiguous() for x, kind in zip(settings, kinds, strict=True)
    )
    uniform_T = None if uniform_T is None else uniform_T.float().contiguous()
    arguments = SampleArguments(
        logits=logits_TV.data_ptr(), temperature=temperature_T.data_ptr(), top_k=top_k_T.data_ptr(),
        top_p=top_p_T.data_ptr(), min_p=min_p_T.data_ptr(), row=logits_TV.stride(0), size=logits_TV.shape[1],
        uniform=None if uniform_T is None else uniform_T.data_ptr(),
        token=None if token_T is None else token_T.data_ptr(),
        probs=None if probs_TV is None else probs_TV.data_ptr(),
    )  # fmt: skip
    _ROWS.launch((logits_TV.shape[0], 1, 1), 1024, [arguments])
