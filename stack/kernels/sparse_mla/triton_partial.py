"""Sparse attention in parts: one program a query, 16 heads and part of its keys, then a merge; BF16 products.

`kv_tile` is how many keys an iteration takes. 32 splits a row's keys over programs until the device is full; 128
rescales the output a quarter as often, and is taken where rows alone fill the device, so that no merge follows (one
part is written as the output itself). Columns behind the last index up to a multiple of the tile are masked, not
stored: a row of 2,112 indices is 17 tiles of 128. FP8 latents are widened to BF16 as they are read (exact), so this is
closer to the contract than FP8 products are. Triton, not the TileLang kernel of the published system; the same knob and
rule.

T rows, H heads, L latent values, W indices, P parts.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.devices import hopper_only
from stack.kernels.sparse_mla.triton_merge import merge_partials

missing = hopper_only

HEADS = 16
LAUNCH = {32: (8, 2), 128: (8, 2)}
"""Tile -> warps, stages."""


@triton.jit
def _attend(
    q, latent, index, out, lse, scale_log2, heads, width, tiles,
    q_row, q_head, page_stride, row_stride, page_shift, index_row, out_part, out_row, out_head, lse_part,
    H: tl.constexpr, L: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    row, block, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2).to(tl.int64)
    h, d, n = block * H + tl.arange(0, H), tl.arange(0, L), tl.arange(0, N)
    inside = h < heads
    query = tl.load(q + row * q_row + h[:, None] * q_head + d[None, :], mask=inside[:, None], other=0.0)
    peak = tl.full((H,), -1e30, tl.float32)
    total = tl.zeros((H,), tl.float32)
    mixed = tl.zeros((H, L), tl.float32)
    for tile in range(tiles):
        column = (tl.program_id(2) * tiles + tile) * N + n
        slot = tl.load(index + row * index_row + column, mask=column < width, other=-1)
        valid = slot >= 0
        slot = tl.where(valid, slot, 0).to(tl.int64)
        place = (slot >> page_shift) * page_stride + (slot & ((1 << page_shift) - 1)) * row_stride
        keys = tl.load(latent + place[:, None] + d[None, :], mask=valid[:, None], other=0.0).to(query.dtype)
        score = tl.where(valid[None, :], tl.dot(query, tl.trans(keys)) * scale_log2, float("-inf"))
        top = tl.maximum(peak, tl.max(score, axis=1))
        p = tl.exp2(score - top[:, None])
        shrink = tl.exp2(peak - top)
        total = total * shrink + tl.sum(p, axis=1)
        mixed = tl.dot(p.to(query.dtype), keys, mixed * shrink[:, None])
        peak = top
    share = tl.where(total > 0, 1.0 / total, 0.0)
    to = out + part * out_part + row * out_row + h[:, None] * out_head + d[None, :]
    tl.store(to, (mixed * share[:, None]).to(out.dtype.element_ty), mask=inside[:, None])
    if lse_part > 0:
        logs = tl.where(total > 0, peak + tl.log2(total), float("-inf"))
        tl.store(lse + part * lse_part + row * heads + h, logs, mask=inside)


def sparse_mla(
    q_THL: Tensor,
    latent_NPL: Tensor,
    index_TW: Tensor,
    *,
    scale: float,
    num_splits: int | None = None,
    kv_tile: int = 128,
) -> Tensor:
    """See the op's contract. `num_splits` None follows the rule above."""
    if q_THL.dtype != torch.bfloat16 or latent_NPL.dtype not in (torch.bfloat16, torch.float8_e4m3fn):
        raise ValueError("triton_partial takes bfloat16 q and bfloat16 or float8_e4m3fn latents")
    processors = torch.cuda.get_device_properties(q_THL.device).multi_processor_count
    blocks = q_THL.shape[0] * triton.cdiv(q_THL.shape[1], HEADS)
    tile = 128 if kv_tile == 128 and blocks >= processors else 32
    tiles = triton.cdiv(index_TW.shape[1], tile)
    splits = num_splits or max(1, min(tiles // 2, 2 * processors // max(blocks, 1)))
    return attend(q_THL, latent_NPL, index_TW, scale, tile, triton.cdiv(tiles, triton.cdiv(tiles, splits)))


def attend(q_THL: Tensor, latent_NPL: Tensor, index_TW: Tensor, scale: float, tile: int, parts: int) -> Tensor:
    """`parts` parts of whole tiles; one of them is the output itself."""
    rows, heads, width = q_THL.shape
    if latent_NPL.shape[1] & (latent_NPL.shape[1] - 1) or width & (width - 1):
        raise ValueError("triton_partial needs a power-of-two page size and latent width")
    out = torch.empty((rows, heads, width), dtype=q_THL.dtype, device=q_THL.device)
    partial = out[None] if parts == 1 else out.new_empty((parts, rows, heads, width), dtype=torch.float32)
    lse = torch.empty((parts, rows, heads), dtype=torch.float32, device=q_THL.device)
    warps, stages = LAUNCH[tile]
    grid: Any = (rows, triton.cdiv(heads, HEADS), parts)
    _attend[grid](
        q_THL, latent_NPL, index_TW, partial, lse, scale * 1.4426950408889634, heads, index_TW.shape[1],
        triton.cdiv(triton.cdiv(index_TW.shape[1], tile), parts), q_THL.stride(0), q_THL.stride(1),
        latent_NPL.stride(0), latent_NPL.stride(1), latent_NPL.shape[1].bit_length() - 1, index_TW.stride(0),
        *partial.stride()[:3], lse.stride(0) if parts > 1 else 0,
        H=HEADS, L=width, N=tile, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if parts > 1:
        merge_partials(partial, lse, out)
    return out
