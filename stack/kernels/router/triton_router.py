"""Scores by tiles of rows and parts of the channels, then sums, choice and weights in a second kernel.

The product is FP32-exact on the tensor cores: BF16 rows meet an FP32 weight as the sum of up to three BF16 terms,
prepared once a weight, whose products are exact in FP32. Few rows are spread over the device by splitting the
channels.
T rows, E experts padded to a power of two, K choices, C channels, S parts.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.devices import cuda_only

missing = cuda_only

INNER = 64
"""Channels of a step."""


@triton.jit
def _scores(
    x, weight, out, rows, experts, width, x_row, part_width,
    TERMS: tl.constexpr, E: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * R + tl.arange(0, R)
    expert = tl.arange(0, E)
    begin = tl.program_id(1) * part_width
    logits = tl.zeros((R, E), tl.float32)
    for step in range(0, part_width, C):
        column = begin + step + tl.arange(0, C)
        a_in = (row < rows)[:, None] & (column < width)[None, :]
        a = tl.load(x + row.to(tl.int64)[:, None] * x_row + column[None, :], mask=a_in, other=0.0)
        b_in = (expert < experts)[None, :] & (column < width)[:, None]
        for term in tl.static_range(TERMS):
            at = weight + (TERMS - 1 - term) * experts * width + expert[None, :] * width + column[:, None]
            logits = tl.dot(a, tl.load(at, mask=b_in, other=0.0), logits)
    to = out + (tl.program_id(1).to(tl.int64) * rows + row)[:, None] * E + expert[None, :]
    tl.store(to, logits, mask=(row < rows)[:, None])


@triton.jit
def _choose(
    scores, bias, num_rows, ids, weights, rows, experts, scaling,
    S: tl.constexpr, K: tl.constexpr, E: tl.constexpr, R: tl.constexpr, NORMALIZE: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * R + tl.arange(0, R)
    expert = tl.arange(0, E)
    inside = row < rows
    logits = tl.zeros((R, E), tl.float32)
    for part in tl.static_range(S):
        at = scores + (part * rows + row).to(tl.int64)[:, None] * E + expert[None, :]
        logits += tl.load(at, mask=inside[:, None], other=0.0)
    score = tl.div_rn(tl.full((R, E), 1.0, tl.float32), 1.0 + tl.exp(-logits))
    real_expert = expert < experts
    preference = score + tl.load(bias + expert, mask=real_expert, other=0.0).to(tl.float32)[None, :]
    preference = tl.where(real_expert[None, :], preference, float("-inf"))
    slot = tl.arange(0, K)
    chosen = tl.zeros((R, K), tl.int32)
    gathered = tl.zeros((R, K), tl.float32)
    total = tl.zeros((R,), tl.float32)
    for i in tl.static_range(K):
        best = tl.argmax(preference, axis=1)
        hit = expert[None, :] == best[:, None]
        picked = tl.sum(tl.where(hit, score, 0.0), axis=1)
        total += picked
        chosen = tl.where(slot[None, :] == i, best[:, None], chosen)
        gathered = tl.where(slot[None, :] == i, picked[:, None], gathered)
        preference = tl.where(hit, float("-inf"), preference)
    if NORMALIZE:
        gathered = tl.div_rn(gathered, tl.broadcast_to((total + 1e-20)[:, None], gathered.shape))
    gathered *= scaling
    if COUNTED:
        real = row < tl.load(num_rows)
        chosen = tl.where(real[:, None], chosen, -1)
        gathered = tl.where(real[:, None], gathered, 0.0)
    to = row[:, None] * K + slot[None, :]
    tl.store(ids + to, chosen, mask=inside[:, None])
    tl.store(weights + to, gathered, mask=inside[:, None])


def router(
    x_TC: Tensor,
    weight_EC: Tensor,
    bias_E: Tensor,
    *,
    top_k: int,
    scaling: float,
    normalize: bool,
    num_rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See the op's contract. `top_k` must be a power of two, x BF16, `weight_EC` contiguous."""
    (rows, width), experts = x_TC.shape, weight_EC.shape[0]
    if top_k & (top_k - 1) or x_TC.dtype != torch.bfloat16:
        raise ValueError("triton_router takes a power-of-two top_k and bfloat16 rows")
    ids_TK = torch.empty((rows, top_k), dtype=torch.int32, device=x_TC.device)
    weights_TK = torch.empty((rows, top_k), dtype=torch.float32, device=x_TC.device)
    if not rows:
        return ids_TK, weights_TK
    terms = bf16_terms(weight_EC)
    padded = max(16, triton.next_power_of_2(experts))
    block, parts = _split(rows, width, padded)
    scores = torch.empty((parts, rows, padded), dtype=torch.float32, device=x_TC.device)
    grid: Any = (triton.cdiv(rows, block), parts)
    part_width = triton.cdiv(width, parts * INNER) * INNER
    _scores[grid](
        x_TC, terms, scores, rows, experts, width, x_TC.stride(0), part_width,
        TERMS=terms.shape[0], E=padded, R=block, C=INNER, num_warps=4 if padded <= 128 else 8,
        num_stages=3 if padded <= 128 else 1,
    )  # fmt: skip
    rows_each = max(1, min(8, 1024 // padded))
    grid = (triton.cdiv(rows, rows_each),)
    _choose[grid](
        scores, bias_E, num_rows, ids_TK, weights_TK, rows, experts, scaling, S=parts, K=top_k, E=padded, R=rows_each,
        NORMALIZE=normalize, COUNTED=num_rows is not None, num_warps=4,
    )  # fmt: skip
    return ids_TK, weights_TK


def _split(rows: int, width: int, padded: int) -> tuple[int, int]:
    """Rows of a tile, and parts of the channels, so that about two programs a multiprocessor run."""
    block = 16 if rows <= 512 else 32 if rows <= 8192 else 64
    parts = 1
    while parts < 16 and triton.cdiv(rows, block) * parts < 264 and width % (2 * parts * INNER) == 0:
        parts *= 2
    return block, parts


@cache
def _known_terms() -> Any:
    from torch.utils.weak import WeakTensorKeyDictionary

    return WeakTensorKeyDictionary()


def bf16_terms(weight: Tensor) -> Tensor:
    """BF16 terms [1 to 3, ...] whose sum is the FP32 weight; computed once a weight (it synchronises: before any
    capture)."""
    known: Tensor | None = _known_terms().get(weight)
    if known is None:
        parts, rest = [], weight.detach().float()
        for _ in range(3):
            parts.append(rest.to(torch.bfloat16))
            rest = rest - parts[-1].float()
            if not bool(rest.any()):
                break
        known = _known_terms()[weight] = torch.stack(parts).contiguous()
    return known
