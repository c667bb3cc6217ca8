"""Score pools in fixed tiles, find each row's threshold, and list what lies above it (CPU).

Every score comes from a product of one shape (rows in tiles, 64 pools), so it does not depend on the batch, and pools
that no row of a request may see are never scored.

T rows, B rows of a block, H index heads, D key width, P pools, C chosen pools, W token slots.
"""

import torch
from torch import Tensor
from torch.nn import functional

from stack.kernels.index_rows import quantize_index_rows
from stack.kernels.row_tiles import tiled_matmul

_POOL_TILE = 64
_BLOCK_ROWS = 128


def missing(device: str) -> str | None:
    """The host walks over requests."""
    return None if device == "cpu" else "its loop over requests is for the CPU"


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
    page_size = codes_NQD.shape[1] * kpool
    slot_T = slot_R.index_select(0, request_T.long()).long()
    weight_TH = w_TH.float() * q_THD.shape[-1] ** -0.5
    key_bytes = _tiles(max_context // kpool) * q_THD.shape[-1] * 4
    block_rows = max(1, min(_BLOCK_ROWS, workspace_bytes // key_bytes))
    blocks = []
    for begin in range(0, q_THD.shape[0], block_rows):
        rows = slice(begin, begin + block_rows)
        slots, seen = slot_T[rows], position_T[rows].long() + 1
        pages = page_table_SP[slots].long()
        scores_BP = _scores(q_THD[rows], weight_TH[rows], codes_NQD, scale_NQ, pages, slots, seen // kpool)
        pools = _best_pools(scores_BP, seen // kpool, budget)
        token_BW = _tokens(pools, seen, kpool, width)
        page_BW = pages.gather(1, token_BW.clamp(min=0) // page_size)
        slot_BW = page_BW * page_size + token_BW % page_size
        blocks.append(torch.where((token_BW >= 0) & (slots > 0)[:, None], slot_BW, -1).int())
    return torch.cat(blocks)


def _tiles(num_pools: int) -> int:
    """`num_pools` rounded up to whole tiles, at least one."""
    return -(-max(num_pools, 1) // _POOL_TILE) * _POOL_TILE


def _scores(
    q_BHD: Tensor,
    weight_BH: Tensor,
    codes_NQD: Tensor,
    scale_NQ: Tensor | None,
    page_BG: Tensor,
    slot_B: Tensor,
    candidates_B: Tensor,
) -> Tensor:
    """FP32 scores [B, P]; tiles beyond a request's pools are left at 0."""
    rows, heads = q_BHD.shape[:2]
    q_BHD = q_BHD.float() if scale_NQ is None else _as_scored(q_BHD)
    slots, counts = torch.unique_consecutive(slot_B, return_counts=True)
    end_R = counts.cumsum(0)
    last_R = candidates_B[end_R - 1].tolist()
    scores_BP = torch.zeros(rows, _tiles(max(last_R)))
    keys_RPD = _keys(codes_NQD, scale_NQ, page_BG[end_R - 1], scores_BP.shape[1])
    for keys_PD, slot, end, count, num_pools in zip(
        keys_RPD, slots.tolist(), end_R.tolist(), counts.tolist(), last_R, strict=True
    ):
        if slot == 0 or num_pools == 0:
            continue
        own = slice(end - count, end)
        q_XD, weight_B1H = q_BHD[own].flatten(0, 1), weight_BH[own, None]
        for begin in range(0, num_pools, _POOL_TILE):
            columns = slice(begin, begin + _POOL_TILE)
            products = tiled_matmul(q_XD, keys_PD[columns]).view(count, heads, _POOL_TILE).relu_()
            scores_BP[own, columns] = torch.bmm(weight_B1H, products)[:, 0]
    return scores_BP


def _keys(codes_NQD: Tensor, scale_NQ: Tensor | None, page_RG: Tensor, num_rows: int) -> Tensor:
    """FP32 keys [R, P, D] of each request's first pools."""
    pages = page_RG[:, : -(-num_rows // codes_NQD.shape[1])]
    if scale_NQ is None:
        keys_RPD = codes_NQD[pages].float().flatten(1, 2)
    else:
        codes = codes_NQD.view(torch.uint8)[pages].view(torch.float8_e4m3fn)
        keys_RPD = (codes.float() * scale_NQ[pages][..., None]).flatten(1, 2)
    missing = num_rows - keys_RPD.shape[1]
    return functional.pad(keys_RPD, (0, 0, 0, missing)) if missing > 0 else keys_RPD


def _as_scored(q_BHD: Tensor) -> Tensor:
    codes, scale = quantize_index_rows(q_BHD)
    return codes.float() * scale[..., None]


def _best_pools(scores_BP: Tensor, candidates_B: Tensor, budget: int) -> Tensor:
    """Pool numbers [B, budget] in ascending order, -1 behind them; lowest pool first on ties."""
    rows, num_pools = scores_BP.shape
    pool_P = torch.arange(num_pools)
    chosen = is_candidate = pool_P < candidates_B[:, None]
    if num_pools > budget:
        scores_BP = scores_BP.masked_fill(~is_candidate, -torch.inf)
        threshold_B1 = scores_BP.topk(budget, dim=1, sorted=True).values[:, -1:]
        above, ties = scores_BP > threshold_B1, scores_BP == threshold_B1
        chosen = (above | (ties & (ties.cumsum(1) <= budget - above.sum(1, keepdim=True)))) & is_candidate
    column_BP = torch.where(chosen, chosen.cumsum(1) - 1, budget)
    pools = torch.full((rows, budget + 1), -1)
    return pools.scatter_(1, column_BP, pool_P.expand(rows, -1))[:, :budget]


def _tokens(pools_BC: Tensor, seen_B: Tensor, kpool: int, width: int) -> Tensor:
    """Positions [B, W]: each pool's tokens, the open tail right behind the last of them, then -1."""
    rows, budget = pools_BC.shape
    offset_K = torch.arange(kpool)
    token_BCK = torch.where(pools_BC[..., None] >= 0, pools_BC[..., None] * kpool + offset_K, -1)
    tail_BK = (seen_B // kpool * kpool)[:, None] + offset_K[:-1]
    is_open = tail_BK < seen_B[:, None]
    column_BK = torch.where(is_open, (pools_BC >= 0).sum(1, keepdim=True) * kpool + offset_K[:-1], width)
    token_BW = torch.full((rows, width + 1), -1)
    token_BW[:, : budget * kpool] = token_BCK.flatten(1)
    return token_BW.scatter_(1, column_BK, torch.where(is_open, tail_BK, -1))[:, :width]
