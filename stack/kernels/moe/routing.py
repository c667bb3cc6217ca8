"""Rows sorted by expert: places, the quantised copy to them, the weighted sum back. Not an implementation of its own.

T tokens, K choices, C channels, E experts, M rows of the sorted layout, a bound known to the host.
"""

from ctypes import c_int64
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stack.kernels.cuda_source import CudaKernel

if TYPE_CHECKING:
    from torch import Tensor

    from stack.kernels.moe.slots import Slots
    from stack.kernels.quantized import QuantizedRows

_SOURCE = Path(__file__).with_name("route.cu")
_ROUTE, _SCATTER, _COMBINE, _COMBINE_ADDED = (
    CudaKernel(_SOURCE, name) for name in ("moe_route", "moe_scatter", "moe_combine", "moe_combine_added")
)


@dataclass(frozen=True, slots=True)
class Places:
    """Where each choice's row lies in the sorted layout."""

    position_TK: "Tensor"
    """int32: row of each choice, -1 for none."""
    layout_M: "Tensor"
    """int32: expert of each row (padding rows too), -1 behind the last expert's."""
    source_M: "Tensor"
    """int32: token * K + choice of each row, -1 for padding."""


def max_sorted_rows(tokens: int, choices: int, experts: int, align: int) -> int:
    """Most rows that the sorted layout can need: every expert that is hit wastes at most `align - 1`."""
    entries = tokens * choices
    hit = min(experts, entries)
    return -(-(entries + hit * (align - 1)) // align) * align


def sort_by_expert(ids_TK: "Tensor", experts: int, align: int) -> Places:
    """Each expert's rows start at a multiple of `align`. One launch; no host synchronisation."""
    import torch

    tokens, choices = ids_TK.shape
    rows = max_sorted_rows(tokens, choices, experts, align)
    if experts > 1024:
        raise ValueError(f"the routing kernel takes at most 1024 experts, not {experts}")
    position, layout, source = (
        torch.empty(shape, dtype=torch.int32, device=ids_TK.device) for shape in ((tokens, choices), (rows,), (rows,))
    )
    places = Places(position, layout, source)
    _ROUTE.launch(
        (1, 1, 1),
        1024,
        [
            ids_TK.contiguous(),
            tokens * choices,
            experts,
            align,
            rows,
            places.position_TK,
            places.layout_M,
            places.source_M,
        ],
    )
    return places


def scatter_quantized(x_TC: "Tensor", places: Places) -> "QuantizedRows":
    """Rows of `x_TC` quantised once and copied to their places. Padding rows stay uninitialised: no result reads
    them."""
    import torch

    from stack.kernels.quantized import GROUP, QuantizedRows, empty_scales

    (tokens, width), rows = x_TC.shape, places.layout_M.shape[0]
    if x_TC.dtype != torch.bfloat16 or width % GROUP:
        raise ValueError("the routed copy takes bfloat16 rows of a multiple of 128 channels")
    codes_MC = torch.empty((rows, width), dtype=torch.float8_e4m3fn, device=x_TC.device)
    scale_MG = empty_scales(rows, width // GROUP, x_TC.device)
    _SCATTER.launch(
        (tokens, 1, 1),
        min(256, -(-width // 512) * 32),
        [
            x_TC,
            c_int64(x_TC.stride(0)),
            places.position_TK,
            places.position_TK.shape[1],
            width,
            codes_MC,
            scale_MG,
            c_int64(scale_MG.stride(1)),
        ],
    )
    return QuantizedRows(codes_MC, scale_MG)


def combine(
    rows_MC: "Tensor", places: "Places | Slots", weights_TK: "Tensor", added_TC: "Tensor | None" = None
) -> "Tensor":
    """The weighted sum of each token's rows [T, C]: FP32 over the choices, rounded once. Then `added_TC` (bfloat16,
    rows may be strided) is added as a separate addition would."""
    import torch

    (tokens, choices), width = places.position_TK.shape, rows_MC.shape[1]
    y_TC = torch.empty((tokens, width), dtype=rows_MC.dtype, device=rows_MC.device)
    threads = min(256, -(-width // 8 // 32) * 32)
    arguments = [rows_MC, places.position_TK, weights_TK.contiguous(), choices, width, y_TC]
    if added_TC is None:
        _COMBINE.launch((tokens, 1, 1), threads, arguments)
        return y_TC
    if added_TC.dtype != torch.bfloat16 or added_TC.shape != y_TC.shape or added_TC.stride(1) != 1:
        raise ValueError(f"the combining kernel adds bfloat16 rows {list(y_TC.shape)}, not {list(added_TC.shape)}")
    _COMBINE_ADDED.launch((tokens, 1, 1), threads, [*arguments, added_TC, c_int64(added_TC.stride(0))])
    return y_TC
