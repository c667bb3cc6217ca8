"""Grouped products in Triton for batches where reading the weights is the work: decode, verify, short prefill passes.

The weight tile is the left operand, 128 rows of it, so that few tokens a tile still use warpgroup instructions on
FP8; it arrives through TMA. Rows are sorted by expert and padded to the tile; activations are gathered in the first
product. FP8 or BF16 experts.
T tokens, K choices, C channels, I inner width, E experts, M sorted rows.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from stack.kernels.devices import hopper_only
from stack.kernels.moe.experts import Experts, SharedExpert, with_shared
from stack.kernels.moe.routing import Places, combine, sort_by_expert
from stack.kernels.moe.tables import Launch, Tile, TileTable
from stack.kernels.quantize_rows.triton_group import quantize_rows
from stack.kernels.quantized import Fp8Weight, QuantizedRows
from stack.kernels.swiglu.triton_rows import swiglu

missing = hopper_only

OUTPUTS, INNER = 128, 128  # a tile of the weight: one scale

TILES = ((8, 16), (24, 32), (1 << 30, 64))
"""Mean rows of an expert up to which a tile of so many rows is used (H200)."""
STAGES, WARPS = 4, 4


@triton.jit
def _grouped(
    weight, w_scale, x, x_scale, layout, source, y, outputs, width, x_scale_group, choices,
    FP8: tl.constexpr, GATHER: tl.constexpr, R: tl.constexpr, N: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    tiles = outputs // N
    row = tl.program_id(0) // tiles * R + tl.arange(0, R)
    first_output = tl.program_id(0) % tiles * N
    expert = tl.load(layout + tl.program_id(0) // tiles * R)
    if expert >= 0:
        entry = tl.load(source + row)
        real = entry >= 0
        from_row = tl.where(real, entry // choices if GATHER else row, 0).to(tl.int64)
        inner = tl.arange(0, C)
        at = x + from_row[None, :] * width + inner[:, None]
        groups = width // C
        total = tl.zeros((N, R), tl.float32)
        for group in range(0, groups):
            w = weight.load([expert * outputs + first_output, group * C])
            a = tl.load(at + group * C, mask=real[None, :], other=0.0)
            if FP8:
                a_scale = tl.load(x_scale + from_row + group * x_scale_group, mask=real, other=0.0)
                w_at = w_scale + (expert.to(tl.int64) * tiles + first_output // N) * groups + group
                total += tl.dot(w, a) * (a_scale * tl.load(w_at))[None, :]
            else:
                total = tl.dot(w, a, total)
        to = y + row.to(tl.int64)[None, :] * outputs + (first_output + tl.arange(0, N))[:, None]
        tl.store(to, total.to(y.dtype.element_ty), mask=real[None, :])


def moe(
    x_TC: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    experts: Experts,
    *,
    limit: float | None,
    swiglu_quant: Callable[..., QuantizedRows],
    shared: SharedExpert | None = None,
    rows: QuantizedRows | None = None,
    tiles: TileTable | None = None,
) -> Tensor:
    """See the op's contract. Outputs of both products must be multiples of 128, inner widths too.

    `tiles` were measured for these experts; without them a rule picks one.
    """
    if not x_TC.shape[0]:
        return torch.empty_like(x_TC)
    gate_up, down = experts.gate_up, experts.down
    stacked = gate_up if isinstance(gate_up, Tensor) else gate_up.codes_NK
    tile = tiles.tile(x_TC.shape[0]) if tiles else untuned_tile(ids_TK.numel(), stacked.shape[0])
    places = sort_by_expert(ids_TK, stacked.shape[0], tile.rows)
    if isinstance(gate_up, Tensor):
        assert isinstance(down, Tensor)
        inner: Tensor | QuantizedRows = swiglu(
            _product(x_TC.contiguous(), gate_up, places, tile.rows, tile.up, gather=True), limit=limit
        )
    else:
        assert isinstance(down, Fp8Weight)
        rows = quantize_rows(x_TC) if rows is None else rows
        inner = swiglu_quant(_product(rows, gate_up, places, tile.rows, tile.up, gather=True), limit=limit)
    routed_TC = combine(_product(inner, down, places, tile.rows, tile.down, gather=False), places, weights_TK)
    return with_shared(routed_TC, x_TC, shared, rows)


def untuned_tile(entries: int, experts: int) -> Tile:
    """What the rule picks for `entries` rows of `experts` experts together."""
    rows = next(rows for mean, rows in TILES if entries <= mean * experts)
    return Tile(rows, Launch(WARPS, STAGES), Launch(WARPS, STAGES))


def _product(
    x: Tensor | QuantizedRows,
    weight: Tensor | Fp8Weight,
    places: Places,
    rows: int,
    launch: Launch,
    *,
    gather: bool,
) -> Tensor:
    codes, x_scale = (x, None) if isinstance(x, Tensor) else (x.codes_TK, x.scale_TG)
    stacked, w_scale = (weight, None) if isinstance(weight, Tensor) else (weight.codes_NK, weight.scale_NK)
    outputs, width = stacked.shape[1:]
    sorted_rows = places.layout_M.shape[0]
    y_MN = torch.empty((sorted_rows, outputs), dtype=torch.bfloat16, device=codes.device)
    inner = INNER if x_scale is not None else INNER // 2
    descriptor = TensorDescriptor.from_tensor(stacked.view(-1, width), [OUTPUTS, inner])
    grid: Any = (sorted_rows // rows * (outputs // OUTPUTS),)
    _grouped[grid](
        descriptor, w_scale, codes, x_scale, places.layout_M, places.source_M, y_MN, outputs, width,
        0 if x_scale is None else x_scale.stride(1), places.position_TK.shape[1],
        FP8=x_scale is not None, GATHER=gather, R=rows, N=OUTPUTS, C=inner, num_warps=launch.warps,
        num_stages=launch.stages,
    )  # fmt: skip
    return y_MN
