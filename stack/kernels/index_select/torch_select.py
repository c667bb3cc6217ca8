"""Score pools in fixed tiles, find each row's threshold, and list what lies above it (CPU).

Every score comes from a product of one shape (rows in tiles, 64 pools), so it does not depend on the batch, and pools
that no row of a block may see are never scored. T rows, n rows of a block, H index heads, D key width, P pools,
W token slots.
"""

import torch
from torch import Tensor

from stack.kernels.index_rows import quantize_index_rows
from stack.kernels.row_tiles import tiled_matmul

_POOL_TILE = 64
_BLOCK_ROWS = 32


def index_select(
    q_THD: Tensor,
    w_TH: Tensor,
    codes_NQD: Tensor,
    scale_NQ: Tensor | None,
    page_table_SP: Tensor,
    slot_R: Tensor,
    request_T: Tensor,
    position_T: Tensor,
    *,
    kpool: int,
    budget: int,
    max_context: int,
    workspace_bytes: int,
) -> Tensor:
    """Token slots int32 [T, W], valid ones first, -1 behind them and in padding rows."""
    width = -(-(budget * kpool + kpool - 1) // 64) * 64
    index_TW = torch.full((q_THD.shape[0], width), -1, dtype=torch.int32)
    q_THD = _as_scored(q_THD, scale_NQ is not None)
    weight_TH = w_TH.float() * q_THD.shape[-1] ** -0.5
    requests, counts = torch.unique_consecutive(request_T, return_counts=True)
    slots, end = slot_R.tolist(), 0
    for request, count in zip(requests.tolist(), counts.tolist(), strict=True):
        begin, end = end, end + count
        if slots[request] == 0:
            continue
        positions = position_T[begin:end].long()
        pages = page_table_SP[slots[request]].long()
        keys_PD = _keys(codes_NQD, scale_NQ, pages, int(positions[-1] + 1) // kpool)
        for first in range(0, count, _BLOCK_ROWS):
            rows = slice(begin + first, min(end, begin + first + _BLOCK_ROWS))
            seen = positions[first : first + _BLOCK_ROWS]
            scores_nP = _scores(q_THD[rows], weight_TH[rows], keys_PD, int(seen[-1] + 1) // kpool)
            pools_nB = _best_pools(scores_nP, (seen + 1) // kpool, budget)
            index_TW[rows] = _tokens(pools_nB, seen, pages, kpool, codes_NQD.shape[1] * kpool, width)
    return index_TW


def _as_scored(q_THD: Tensor, is_fp8: bool) -> Tensor:
    if not is_fp8:
        return q_THD.float()
    codes, scale = quantize_index_rows(q_THD)
    return codes.float() * scale[..., None]


def _keys(codes_NQD: Tensor, scale_NQ: Tensor | None, pages: Tensor, num_pools: int) -> Tensor:
    used = pages[: -(-num_pools // codes_NQD.shape[1])]
    if scale_NQ is None:
        keys_PD = codes_NQD[used].float().flatten(0, 1)
    else:
        codes = codes_NQD.view(torch.uint8)[used].view(torch.float8_e4m3fn)
        keys_PD = (codes.float() * scale_NQ[used][..., None]).flatten(0, 1)
    missing = -keys_PD.shape[0] % _POOL_TILE
    return torch.cat((keys_PD, keys_PD.new_zeros(missing, keys_PD.shape[1]))) if missing else keys_PD


def _scores(q_nHD: Tensor, weight_nH: Tensor, keys_PD: Tensor, num_pools: int) -> Tensor:
    rows, heads = q_nHD.shape[:2]
    if num_pools == 0:
        return q_nHD.new_zeros(rows, _POOL_TILE)
    tiles = []
    for tile in keys_PD[: -(-num_pools // _POOL_TILE) * _POOL_TILE].split(_POOL_TILE):
        scores = tiled_matmul(q_nHD.flatten(0, 1), tile).view(rows, heads, _POOL_TILE).relu_()
        tiles.append(torch.bmm(weight_nH[:, None], scores)[:, 0])
    return torch.cat(tiles, 1)


def _best_pools(scores_nP: Tensor, candidates_n: Tensor, budget: int) -> Tensor:
    """Pool numbers [n, budget] in ascending order, -1 behind them; lowest pool first on ties."""
    rows, num_pools = scores_nP.shape
    pool_P = torch.arange(num_pools)
    is_candidate = pool_P < candidates_n[:, None]
    chosen = is_candidate
    if num_pools > budget:
        scores_nP = scores_nP.masked_fill(~is_candidate, -torch.inf)
        threshold_n1 = scores_nP.topk(budget, dim=1, sorted=True).values[:, -1:]
        above, ties = scores_nP > threshold_n1, scores_nP == threshold_n1
        chosen = (above | (ties & (ties.cumsum(1) <= budget - above.sum(1, keepdim=True)))) & is_candidate
    column_nP = torch.where(chosen, chosen.cumsum(1) - 1, budget)
    pools = torch.full((rows, budget + 1), -1)
    return pools.scatter_(1, column_nP, pool_P.expand(rows, -1))[:, :budget]


def _tokens(pools_nB: Tensor, position_n: Tensor, pages: Tensor, kpool: int, page_size: int, width: int) -> Tensor:
    """Each pool's tokens, the open tail right behind the last of them, as token slots."""
    rows, budget = pools_nB.shape
    slot_K = torch.arange(kpool)
    token_nBK = torch.where(pools_nB[..., None] >= 0, pools_nB[..., None] * kpool + slot_K, -1)
    tail_n1 = ((position_n + 1) // kpool * kpool)[:, None]
    tail_nK = tail_n1 + slot_K[:-1]
    is_open = tail_nK <= position_n[:, None]
    column_nK = torch.where(is_open, (pools_nB >= 0).sum(1, keepdim=True) * kpool + slot_K[:-1], width)
    token_nW = torch.full((rows, width + 1), -1)
    token_nW[:, : budget * kpool] = token_nBK.flatten(1)
    token_nW = token_nW.scatter_(1, column_nK, torch.where(is_open, tail_nK, -1))[:, :width]
    page_nW = pages[token_nW.clamp(min=0) // page_size]
    return torch.where(token_nW >= 0, page_nW * page_size + token_nW % page_size, -1).int()
