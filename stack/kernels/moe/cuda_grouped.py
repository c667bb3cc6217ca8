"""Grouped FP8 products by blocks that stay on their multiprocessors, for batches where reading the weights is the work.

Weights stream through a ring of stages by tensor copies, without a pause between one tile's end and the next one's
beginning; `grouped.cu` says how. Rows are sorted by expert and padded to a tile of 16, 32 or 64; padding is neither
read nor written. The first product activates and quantises what it stores. A shared expert goes into the same
launches, as in `triton_beside`.
T tokens, K choices, C channels, I inner width, J the shared expert's, E experts, M sorted rows.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stack.kernels import tensor_map
from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only
from stack.kernels.moe.routing import Places, combine, sort_by_expert
from stack.kernels.quantized import GROUP, Fp8Weight, QuantizedRows, empty_scales

if TYPE_CHECKING:
    from torch import Tensor

    from stack.kernels.moe.experts import Experts, SharedExpert

missing = hopper_only

BLOCK, THREADS = 128, 384
"""Width of a block of weights, which has one scale; an item is two of them wide."""
STAGES = {16: 6, 32: 5, 64: 4}
"""Stages of the ring by rows of a tile: what fits beside the tile's outputs."""
TILES = ((8, 16), (16, 32), (1 << 30, 64))
"""Mean rows of an expert up to which a tile of so many rows is used. By arithmetic; others were not timed."""


def _kernel(name: str, rows: int) -> CudaKernel:
    stage = (2 * BLOCK + rows) * BLOCK
    shared = STAGES[rows] * (stage + 4 * rows + 2 * 8) + rows * 2 * (2 * BLOCK + 8)
    return CudaKernel(Path(__file__).with_name("grouped.cu"), f"{name}_{rows}", -(-shared // 128) * 128)


_UP, _DOWN = ({rows: _kernel(name, rows) for rows in STAGES} for name in ("moe_up", "moe_down"))


class GroupedArguments(ctypes.Structure):
    """`GroupedArguments` of the source."""

    _fields_: ClassVar[Any] = (
        [(name, ctypes.c_void_p) for name in "x x_scale w_scale shared_scale layout source codes scales y".split()]
        + [(name, ctypes.c_int64) for name in "x_row x_scale_group scales_group".split()]
        + [(name, ctypes.c_int) for name in "tokens sorted_rows choices outputs width".split()]
        + [(name, ctypes.c_int) for name in "shared_outputs shared_width".split()]
        + [("limit", ctypes.c_float)]
    )


@dataclass(frozen=True, slots=True)
class _Product:
    """One product's weights, [E, N, K] and the shared expert's [N', K'], for rows that were sorted like this."""

    experts: Fp8Weight
    shared: Fp8Weight | None
    places: Places
    rows: int
    """Of a tile."""

    @property
    def stored_rows(self) -> int:
        """Sorted rows, and behind them the tokens where a shared expert has them."""
        beside = 0 if self.shared is None else self.places.position_TK.shape[0]
        return self.places.layout_M.shape[0] + beside

    def launch(self, kernels: dict[int, CudaKernel], x: QuantizedRows, **results: Any) -> None:
        """Multiply `x`; `results` are the arguments that say where to."""
        (num_experts, outputs, width), device = self.experts.codes_NK.shape, x.codes_TK.device
        (tokens, choices), sorted_rows = self.places.position_TK.shape, self.places.layout_M.shape[0]
        beside = self.shared
        shared_outputs, shared_width = (0, 0) if beside is None else beside.codes_NK.shape
        arguments = GroupedArguments(
            x=x.codes_TK.data_ptr(), x_scale=x.scale_TG.data_ptr(), w_scale=self.experts.scale_NK.data_ptr(),
            shared_scale=None if beside is None else beside.scale_NK.data_ptr(),
            layout=self.places.layout_M.data_ptr(), source=self.places.source_M.data_ptr(), x_row=x.codes_TK.stride(0),
            x_scale_group=x.scale_TG.stride(1), tokens=tokens, sorted_rows=sorted_rows, choices=choices,
            outputs=outputs, width=width, shared_outputs=shared_outputs, shared_width=shared_width, **results,
        )  # fmt: skip
        routed_map = _map(self.experts.codes_NK.data_ptr(), num_experts * outputs, width)
        shared_map = routed_map if beside is None else _map(beside.codes_NK.data_ptr(), shared_outputs, shared_width)
        wide = 2 * BLOCK
        items = -(-tokens // self.rows) * (shared_outputs // wide) + sorted_rows // self.rows * (outputs // wide)
        grid = (min(items, _multiprocessors(device)), 1, 1)
        kernels[self.rows].launch(grid, THREADS, [arguments, routed_map, shared_map])


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
    """See the op's contract. Between the products it has an activation of its own. Raises ValueError for experts that
    are not FP8, for widths that are not multiples of 128 (of 256 what comes out), and for a shared expert that is wider
    than a routed one."""
    import torch

    if not x_TC.shape[0]:
        return torch.empty_like(x_TC)
    gate_up, down = _served(experts.gate_up), _served(experts.down)
    beside, back = (
        (None, None) if shared is None else (_served(w) for w in (shared.weights.gate_up, shared.weights.down))
    )
    if beside is not None and beside.codes_NK.shape[0] > gate_up.codes_NK.shape[1]:
        raise ValueError("cuda_grouped takes a shared expert no wider than a routed one; use by_rows")
    num_experts = gate_up.codes_NK.shape[0]
    tile = next(rows for mean, rows in TILES if ids_TK.numel() <= mean * num_experts)
    places = sort_by_expert(ids_TK, num_experts, tile)
    x = _quantized(x_TC) if rows is None else rows
    inner = _up(x, _Product(gate_up, beside, places, tile), inf if limit is None else limit)
    rows_MC = _down(inner, _Product(down, back, places, tile))
    sorted_rows = places.layout_M.shape[0]
    return combine(rows_MC[:sorted_rows], places, weights_TK, None if shared is None else rows_MC[sorted_rows:])


def fits(experts: "Experts", shared: "SharedExpert | None") -> bool:
    """Whether `moe` takes these weights."""
    gate_up, beside = experts.gate_up, None if shared is None else shared.weights
    if not (_is_whole(gate_up) and _is_whole(experts.down)):
        return False
    if beside is None:
        return True
    return _is_whole(beside.gate_up) and _is_whole(beside.down) and _outputs(beside.gate_up) <= _outputs(gate_up)


def _outputs(weight: "Tensor | Fp8Weight") -> int:
    return (weight.codes_NK if isinstance(weight, Fp8Weight) else weight).shape[-2]


def _is_whole(weight: "Tensor | Fp8Weight") -> bool:
    if not isinstance(weight, Fp8Weight):
        return False
    outputs, inner = weight.codes_NK.shape[-2:]
    return outputs % (2 * BLOCK) == 0 and inner % BLOCK == 0


def _quantized(x_TC: "Tensor") -> QuantizedRows:
    from stack.kernels.quantize_rows.triton_group import quantize_rows

    return quantize_rows(x_TC)


def _served(weight: "Tensor | Fp8Weight") -> Fp8Weight:
    if not isinstance(weight, Fp8Weight):
        raise ValueError("cuda_grouped takes FP8 experts, a shared one included; use triton_beside")
    if not _is_whole(weight):
        outputs, inner = weight.codes_NK.shape[-2:]
        raise ValueError(
            f"cuda_grouped takes multiples of {2 * BLOCK} outputs and {BLOCK} inner channels, not {outputs} and "
            f"{inner}; use triton_beside"
        )
    return weight


def _up(x: QuantizedRows, product: _Product, limit: float) -> QuantizedRows:
    """Activated and quantised [M + T, I]; a shared row is as wide as a routed one and only its first J columns are
    real. Rows that nobody chose are uninitialised."""
    import torch

    rows, inner, device = product.stored_rows, product.experts.codes_NK.shape[1] // 2, x.codes_TK.device
    codes_MI = torch.empty((rows, inner), dtype=torch.float8_e4m3fn, device=device)
    scale_MG = empty_scales(rows, inner // GROUP, device)
    to = {"codes": codes_MI.data_ptr(), "scales": scale_MG.data_ptr(), "scales_group": scale_MG.stride(1)}
    product.launch(_UP, x, **to, limit=limit)
    return QuantizedRows(codes_MI, scale_MG)


def _down(x: QuantizedRows, product: _Product) -> "Tensor":
    """Outputs [M + T, C]: of the sorted rows, then the shared expert's of every token. Rows that nobody chose are
    uninitialised."""
    import torch

    shape = (product.stored_rows, product.experts.codes_NK.shape[1])
    y_MC = torch.empty(shape, dtype=torch.bfloat16, device=x.codes_TK.device)
    product.launch(_DOWN, x, y=y_MC.data_ptr())
    return y_MC


@cache
def _map(address: int, rows: int, width: int) -> Any:
    return tensor_map.byte_matrix(address, rows, width, BLOCK)


@cache
def _multiprocessors(device: Any) -> int:
    import torch

    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
