"""The routed experts and the shared one in the same launches: two products, one activation, one weighted sum.

A product's first programs are the shared expert's: its rows are the tokens themselves, and follow the sorted ones in
every buffer. Between the products a shared row is as wide as a routed one and only its first columns are real. The
sum adds the shared term as a separate addition would. Rows that are quantised already are taken as they are.
T tokens, K choices, C channels, I inner width, J the shared expert's, E experts, M sorted rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from stack.kernels.devices import hopper_only
from stack.kernels.moe import triton_grouped
from stack.kernels.moe.experts import Experts, SharedExpert
from stack.kernels.moe.routing import Places, combine, sort_by_expert
from stack.kernels.moe.tables import Launch, Tile, TileTable
from stack.kernels.moe.triton_grouped import INNER, OUTPUTS, untuned_tile
from stack.kernels.quantize_rows.triton_group import quantize_rows
from stack.kernels.quantized import Fp8Weight, QuantizedRows
from stack.kernels.swiglu.triton_rows import swiglu

missing = hopper_only


@triton.jit
def _tile(
    weight, w_scale, first_row, first_scale, x, x_scale, from_row, real, x_row, x_scale_group, groups,
    FP8: tl.constexpr, R: tl.constexpr, N: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """N weight rows from `first_row` on, whose scales begin at `first_scale`, times R rows of x: FP32 [N, R]."""
    inner = tl.arange(0, C)
    at = x + from_row.to(tl.int64)[None, :] * x_row + inner[:, None]
    total = tl.zeros((N, R), tl.float32)
    for group in range(0, groups):
        w = weight.load([first_row, group * C])
        a = tl.load(at + group * C, mask=real[None, :], other=0.0)
        if FP8:
            a_scale = tl.load(x_scale + from_row + group * x_scale_group, mask=real, other=0.0)
            total += tl.dot(w, a) * (a_scale * tl.load(w_scale + first_scale + group))[None, :]
        else:
            total = tl.dot(w, a, total)
    return total


@triton.jit(do_not_specialize=["tokens", "sorted_rows"])
def _beside(
    weight, w_scale, shared, shared_scale, x, x_scale, layout, source, y, tokens, sorted_rows, outputs, width,
    shared_outputs, shared_width, shared_half, x_row, x_scale_group, choices,
    FP8: tl.constexpr, GATHER: tl.constexpr, R: tl.constexpr, N: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    shared_tiles = shared_outputs // N
    shared_programs = tl.cdiv(tokens, R) * shared_tiles
    program = tl.program_id(0)
    output = tl.arange(0, N)
    if program < shared_programs:
        token = program // shared_tiles * R + tl.arange(0, R)
        real = token < tokens
        row = sorted_rows + token
        tile = program % shared_tiles
        total = _tile(
            shared, shared_scale, tile * N, tile * (shared_width // C), x, x_scale,
            tl.where(real, token if GATHER else row, 0), real, x_row, x_scale_group, shared_width // C,
            FP8=FP8, R=R, N=N, C=C,
        )  # fmt: skip
        column = tile * N + output
        if GATHER:
            column += tl.where(tile * N < shared_half, 0, outputs // 2 - shared_half)
        to = y + row.to(tl.int64)[None, :] * outputs + column[:, None]
        tl.store(to, total.to(y.dtype.element_ty), mask=real[None, :])
    else:
        program -= shared_programs
        tiles = outputs // N
        row = program // tiles * R + tl.arange(0, R)
        tile = program % tiles
        expert = tl.load(layout + program // tiles * R)
        if expert >= 0:
            entry = tl.load(source + row)
            real = entry >= 0
            total = _tile(
                weight, w_scale, expert * outputs + tile * N, (expert.to(tl.int64) * tiles + tile) * (width // C),
                x, x_scale, tl.where(real, entry // choices if GATHER else row, 0), real, x_row, x_scale_group,
                width // C, FP8=FP8, R=R, N=N, C=C,
            )  # fmt: skip
            to = y + row.to(tl.int64)[None, :] * outputs + (tile * N + output)[:, None]
            tl.store(to, total.to(y.dtype.element_ty), mask=real[None, :])


@dataclass(frozen=True, slots=True)
class Product:
    """One product's weights: the stacked ones and the shared expert's, which has `half` gate rows where it has two
    kinds."""

    experts: Tensor | Fp8Weight
    shared: Tensor | Fp8Weight
    half: int = 0


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
    """See the op's contract. Outputs of all products must be multiples of 128, inner widths too, and the shared expert
    may not be wider than a routed one. Without one it is `triton_grouped`; `tiles` as there."""
    if shared is None:
        return triton_grouped.moe(
            x_TC, ids_TK, weights_TK, experts, limit=limit, swiglu_quant=swiglu_quant, rows=rows, tiles=tiles
        )
    if not x_TC.shape[0]:
        return torch.empty_like(x_TC)
    up, down = products(experts, shared.weights)
    num_experts = _codes(up.experts).shape[0]
    tile = tiles.tile(x_TC.shape[0]) if tiles else untuned_tile(ids_TK.numel(), num_experts)
    places = sort_by_expert(ids_TK, num_experts, tile.rows)
    if isinstance(up.experts, Fp8Weight):
        x: Tensor | QuantizedRows = quantize_rows(x_TC) if rows is None else rows
        activation: Callable[..., Tensor | QuantizedRows] = swiglu_quant
    else:
        x, activation = x_TC.contiguous(), swiglu
    rows_MC = expert_rows(x, up, down, places, tile, lambda inner: activation(inner, limit=limit))
    sorted_rows = places.layout_M.shape[0]
    return combine(rows_MC[:sorted_rows], places, weights_TK, rows_MC[sorted_rows:])


def expert_rows(
    x: Tensor | QuantizedRows,
    up: Product,
    down: Product,
    places: Places,
    tile: Tile,
    activation: Callable[[Tensor], Tensor | QuantizedRows],
) -> Tensor:
    """Outputs [M + T, C]: of the sorted rows (those behind an expert's last are uninitialised), then the shared
    expert's of every token."""
    inner = activation(_product(x, up, places, tile.rows, tile.up, gather=True))
    return _product(inner, down, places, tile.rows, tile.down, gather=False)


def products(experts: Experts, shared: Experts) -> tuple[Product, Product]:
    """Gate and up, then down. Raises ValueError for weights that the kernel does not serve."""
    up = Product(experts.gate_up, shared.gate_up, _codes(shared.gate_up).shape[0] // 2)
    down = Product(experts.down, shared.down)
    if any(isinstance(p.experts, Fp8Weight) != isinstance(p.shared, Fp8Weight) for p in (up, down)):
        raise ValueError("triton_beside takes a shared expert that is stored as the routed ones are; use by_rows")
    widths = [n for p in (up, down) for n in (*_codes(p.experts).shape[1:], *_codes(p.shared).shape)]
    if any(n % OUTPUTS for n in (*widths, up.half)) or up.half > _codes(up.experts).shape[1] // 2:
        raise ValueError(
            f"triton_beside takes widths of a multiple of {OUTPUTS} and a shared expert no wider than a routed one; "
            "use by_rows"
        )
    return up, down


def _codes(weight: Tensor | Fp8Weight) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight.codes_NK


def _product(
    x: Tensor | QuantizedRows, product: Product, places: Places, rows: int, launch: Launch, *, gather: bool
) -> Tensor:
    codes, x_scale = (x, None) if isinstance(x, Tensor) else (x.codes_TK, x.scale_TG)
    w_scale, shared_scale = (
        None if isinstance(weight, Tensor) else weight.scale_NK for weight in (product.experts, product.shared)
    )
    stacked, shared = _codes(product.experts), _codes(product.shared)
    outputs, width = stacked.shape[1:]
    (tokens, choices), sorted_rows = places.position_TK.shape, places.layout_M.shape[0]
    kind = torch.bfloat16 if x_scale is not None else codes.dtype
    y_MN = torch.empty((sorted_rows + tokens, outputs), dtype=kind, device=codes.device)
    inner = INNER if x_scale is not None else INNER // 2
    descriptors = (TensorDescriptor.from_tensor(w.view(-1, w.shape[-1]), [OUTPUTS, inner]) for w in (stacked, shared))
    of_experts, of_shared = descriptors
    programs = sorted_rows // rows * (outputs // OUTPUTS) + triton.cdiv(tokens, rows) * (shared.shape[0] // OUTPUTS)
    grid: Any = (programs,)
    _beside[grid](
        of_experts, w_scale, of_shared, shared_scale, codes, x_scale, places.layout_M, places.source_M, y_MN, tokens,
        sorted_rows, outputs, width, *shared.shape, product.half, codes.stride(0),
        0 if x_scale is None else x_scale.stride(1), choices, FP8=x_scale is not None, GATHER=gather, R=rows, N=OUTPUTS,
        C=inner, num_warps=launch.warps, num_stages=launch.stages,
    )  # fmt: skip
    return y_MN
