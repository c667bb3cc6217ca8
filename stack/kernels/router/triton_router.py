"""Scores, choice and weights in one kernel; a program owns a tile of rows and every expert.

The product is FP32-exact on the tensor cores: an FP32 weight is cut into three BF16 terms, whose products with BF16
rows are exact in FP32.
T rows, E experts padded to a power of two, K choices, C channels.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stack.kernels.devices import cuda_only

missing = cuda_only


@triton.jit
def _route(
    x, weight, bias, num_rows, ids, weights, rows, experts, width, x_row, scaling,
    K: tl.constexpr, E: tl.constexpr, R: tl.constexpr, C: tl.constexpr, NORMALIZE: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * R + tl.arange(0, R)
    expert = tl.arange(0, E)
    inside = row < rows
    logits = tl.zeros((R, E), tl.float32)
    for begin in range(0, width, C):
        column = begin + tl.arange(0, C)
        a = tl.load(
            x + row.to(tl.int64)[:, None] * x_row + column[None, :],
            mask=inside[:, None] & (column < width)[None, :],
            other=0.0,
        )
        b = tl.load(
            weight + expert[None, :] * width + column[:, None],
            mask=(expert < experts)[None, :] & (column < width)[:, None],
            other=0.0,
        )
        if weight.dtype.element_ty == tl.bfloat16:
            logits = tl.dot(a, b, logits)
        else:
            high = b.to(tl.bfloat16)
            rest = b - high.to(tl.float32)
            middle = rest.to(tl.bfloat16)
            logits = tl.dot(a, (rest - middle.to(tl.float32)).to(tl.bfloat16), logits)
            logits = tl.dot(a, middle, logits)
            logits = tl.dot(a, high, logits)
    score = tl.div_rn(tl.full((R, E), 1.0, tl.float32), 1.0 + tl.exp(-logits))
    choice = tl.where(
        (expert < experts)[None, :],
        score + tl.load(bias + expert, mask=expert < experts, other=0.0)[None, :],
        float("-inf"),
    )
    slot = tl.arange(0, K)
    chosen = tl.zeros((R, K), tl.int32)
    gathered = tl.zeros((R, K), tl.float32)
    total = tl.zeros((R,), tl.float32)
    for i in tl.static_range(K):
        best = tl.argmax(choice, axis=1)
        hit = expert[None, :] == best[:, None]
        picked = tl.sum(tl.where(hit, score, 0.0), axis=1)
        total += picked
        chosen = tl.where(slot[None, :] == i, best[:, None], chosen)
        gathered = tl.where(slot[None, :] == i, picked[:, None], gathered)
        choice = tl.where(hit, float("-inf"), choice)
    if NORMALIZE:
        gathered = tl.div_rn(gathered, tl.broadcast_to((total + 1e-20)[:, None], gathered.shape))
    gathered *= scaling
    if COUNTED:
        real = row < tl.load(num_rows)
        chosen = tl.where(real[:, None], chosen, -1)
        gathered = tl.where(real[:, None], gathered, 0.0)
    at = row[:, None] * K + slot[None, :]
    tl.store(ids + at, chosen, mask=inside[:, None])
    tl.store(weights + at, gathered, mask=inside[:, None])


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
    """See the op's contract. `top_k` must be a power of two, x BF16, `weight_EC` contiguous BF16 or FP32."""
    rows, width = x_TC.shape
    if top_k & (top_k - 1) or x_TC.dtype != torch.bfloat16 or weight_EC.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError("triton_router takes a power-of-two top_k, bfloat16 rows and a bfloat16 or float32 weight")
    ids_TK = torch.empty((rows, top_k), dtype=torch.int32, device=x_TC.device)
    weights_TK = torch.empty((rows, top_k), dtype=torch.float32, device=x_TC.device)
    experts = weight_EC.shape[0]
    if rows:
        block_experts = max(16, triton.next_power_of_2(experts))
        block_rows = 16 if rows <= 4096 or block_experts > 128 else 64
        grid: Any = (triton.cdiv(rows, block_rows),)
        _route[grid](
            x_TC, weight_EC, bias_E, num_rows, ids_TK, weights_TK, rows, experts, width, x_TC.stride(0), scaling,
            K=top_k, E=block_experts, R=block_rows, C=128 if block_experts <= 128 else 64, NORMALIZE=normalize,
            COUNTED=num_rows is not None, num_warps=4, num_stages=3,
        )  # fmt: skip
    return ids_TK, weights_TK
