"""Grouped FP8 products by blocks that stay on their multiprocessors, for batches where reading the weights is the work.

Weights stream through a ring of stages by tensor copies, without a pause between one tile's end and the next one's
beginning; `grouped.cu` says how. Rows are sorted by expert and padded to a tile of 16, 32 or 64; padding is neither
read nor written. A shared expert goes into the same launches, as in `triton_beside`.
T tokens, K choices, C channels, I inner width, J the shared expert's, E experts, M sorted rows.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stack.kernels import tensor_map
from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only
from stack.kernels.moe.routing import Places, combine, sort_by_expert
from stack.kernels.quantized import Fp8Weight, QuantizedRows

if TYPE_CHECKING:
    from torch import Tensor

    from stack.kernels.moe.experts import Experts, SharedExpert

missing = hopper_only

OUTPUTS, INNER, THREADS = 256, 128, 384
STAGES = {16: 6, 32: 5, 64: 4}
"""Stages of the ring by rows of a tile: what fits beside the tile's outputs."""
TILES = ((8, 16), (16, 32), (1 << 30, 64))
"""Mean rows of an expert up to which a tile of so many rows is used. By arithmetic; not measured yet."""


def _kernel(rows: int) -> CudaKernel:
    stage = OUTPUTS * INNER + rows * INNER
    shared = STAGES[rows] * (stage + 4 * rows + 2 * 8) + rows * 2 * (OUTPUTS + 8)
    return CudaKernel(Path(__file__).with_name("grouped.cu"), f"moe_grouped_{rows}", -(-shared // 128) * 128)


_KERNELS = {rows: _kernel(rows) for rows in STAGES}


class GroupedArguments(ctypes.Structure):
    """`GroupedArguments` of the source."""

    _fields_: ClassVar[Any] = (
        [(name, ctypes.c_void_p) for name in "x x_scale w_scale shared_scale layout source y".split()]
        + [(name, ctypes.c_int64) for name in "x_row x_scale_group".split()]
        + [(name, ctypes.c_int) for name in "tokens sorted_rows choices gather outputs width".split()]
        + [(name, ctypes.c_int) for name in "shared_outputs shared_width shared_half".split()]
    )


@dataclass(frozen=True, slots=True)
class _Product:
    """One product's weights: the stacked ones, and the shared expert's with its gate rows where it has two kinds."""

    experts: Fp8Weight
    shared: Fp8Weight | None
    half: int = 0


def moe(
    x_TC: "Tensor",
    ids_TK: "Tensor",
    weights_TK: "Tensor",
    experts: "Experts",
    *,
    limit: float | None,
    swiglu_quant: Callable[..., QuantizedRows],
    shared: "SharedExpert | None" = None,
    rows: QuantizedRows | None = None,
) -> "Tensor":
    """See the op's contract. Raises ValueError for experts that are not FP8, for outputs that are not a multiple of 256
    or inner widths not of 128, and for a shared expert that is wider than a routed one."""
    import torch

    if not x_TC.shape[0]:
        return torch.empty_like(x_TC)
    up, down = _products(experts, shared)
    num_experts = up.experts.codes_NK.shape[0]
    tile = next(rows for mean, rows in TILES if ids_TK.numel() <= mean * num_experts)
    places = sort_by_expert(ids_TK, num_experts, tile)
    inner = _multiply(_quantized(x_TC) if rows is None else rows, up, places, tile, gather=True)
    rows_MC = _multiply(swiglu_quant(inner, limit=limit), down, places, tile, gather=False)
    sorted_rows = places.layout_M.shape[0]
    return combine(rows_MC[:sorted_rows], places, weights_TK, None if shared is None else rows_MC[sorted_rows:])


def _quantized(x_TC: "Tensor") -> QuantizedRows:
    from stack.kernels.quantize_rows.triton_group import quantize_rows

    return quantize_rows(x_TC)


def _products(experts: "Experts", shared: "SharedExpert | None") -> tuple[_Product, _Product]:
    up, down = _served(experts.gate_up), _served(experts.down)
    if shared is None:
        return _Product(up, None), _Product(down, None)
    beside, back = _served(shared.weights.gate_up), _served(shared.weights.down)
    if beside.codes_NK.shape[0] > up.codes_NK.shape[1]:
        raise ValueError("cuda_grouped takes a shared expert no wider than a routed one; use by_rows")
    return _Product(up, beside, beside.codes_NK.shape[0] // 2), _Product(down, back)


def _served(weight: "Tensor | Fp8Weight") -> Fp8Weight:
    if not isinstance(weight, Fp8Weight):
        raise ValueError("cuda_grouped takes FP8 experts, a shared one included; use triton_beside")
    outputs, inner = weight.codes_NK.shape[-2:]
    if outputs % OUTPUTS or inner % INNER:
        raise ValueError(
            f"cuda_grouped takes multiples of {OUTPUTS} outputs and {INNER} inner channels, not {outputs} and {inner}; "
            "use triton_beside"
        )
    return weight


def _multiply(x: QuantizedRows, product: _Product, places: Places, rows: int, *, gather: bool) -> "Tensor":
    """[M + T, outputs]: of the sorted rows (those that nobody chose are uninitialised), then the shared expert's."""
    import torch

    stacked, beside = product.experts, product.shared
    num_experts, outputs, width = stacked.codes_NK.shape
    (tokens, choices), sorted_rows = places.position_TK.shape, places.layout_M.shape[0]
    shared_outputs, shared_width = (0, 0) if beside is None else beside.codes_NK.shape
    added = 0 if beside is None else tokens
    y_MN = torch.empty((sorted_rows + added, outputs), dtype=torch.bfloat16, device=x.codes_TK.device)
    arguments = GroupedArguments(
        x=x.codes_TK.data_ptr(), x_scale=x.scale_TG.data_ptr(), w_scale=stacked.scale_NK.data_ptr(),
        shared_scale=None if beside is None else beside.scale_NK.data_ptr(), layout=places.layout_M.data_ptr(),
        source=places.source_M.data_ptr(), y=y_MN.data_ptr(), x_row=x.codes_TK.stride(0),
        x_scale_group=x.scale_TG.stride(1), tokens=tokens, sorted_rows=sorted_rows, choices=choices, gather=gather,
        outputs=outputs, width=width, shared_outputs=shared_outputs, shared_width=shared_width,
        shared_half=product.half or outputs,
    )  # fmt: skip
    routed_map = _map(stacked.codes_NK.data_ptr(), num_experts * outputs, width)
    shared_map = routed_map if beside is None else _map(beside.codes_NK.data_ptr(), shared_outputs, shared_width)
    items = -(-tokens // rows) * (shared_outputs // OUTPUTS) + sorted_rows // rows * (outputs // OUTPUTS)
    grid = min(items, _multiprocessors(y_MN.device))
    _KERNELS[rows].launch((grid, 1, 1), THREADS, [arguments, routed_map, shared_map])
    return y_MN


@cache
def _map(address: int, rows: int, width: int) -> Any:
    return tensor_map.byte_matrix(address, rows, width, OUTPUTS)


@cache
def _multiprocessors(device: Any) -> int:
    import torch

    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
