"""Score pools in fixed tiles, find each row's threshold, and list what lies above it (CPU).

Every score comes from a product of one shape (rows in tiles, 64 pools), so it does not depend on the batch, and pools
that no row of a request may see are never scored.

T rows, B rows of a block, H index heads, D key width, P pools, C chosen pools, W token slots.
"""

import torch
from torch import Tensor

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
    keys = _Keys(codes_NQD, scale_NQ, page_table_SP)
    slot_T = slot_R.index_select(0, request_T.long()).long()
    weight_TH = w_TH.float() * q_THD.shape[-1] ** -0.5
    blocks = []
    for begin in range(0, q_THD.shape[0], _BLOCK_ROWS):
        rows = slice(begin, begin + _BLOCK_ROWS)
        slots, seen = slot_T[rows], position_T[rows].long() + 1
        scores_BP = _scores(q_THD[rows], weight_TH[rows], keys, slots, seen // kpool)
        pools = _best_pools(scores_BP, seen // kpool, budget)
        token_BW = _tokens(pools, seen, kpool, width)
        pages = page_table_SP[slots].long()
        page_BW = pages.gather(1, token_BW.clamp(min=0) // keys.page_size(kpool))
        slot_BW = page_BW * keys.page_size(kpool) + token_BW % keys.page_size(kpool)
        blocks.append(torch.where((token_BW >= 0) & (slots > 0)[:, None], slot_BW, -1).int())
    return torch.cat(blocks)


class _Keys:
    """Pooled keys of one request at a time, dequantised once while its rows are scored."""

    def __init__(self, codes_NQD: Tensor, scale_NQ: Tensor | None, page_table_SP: Tensor) -> None:
        self._codes_NQD, self._scale_NQ, self._page_table_SP = codes_NQD, scale_NQ, page_table_SP
        self._slot, self._keys_PD = 0, torch.empty(0, codes_NQD.shape[2])

    @property
    def is_fp8(self) -> bool:
        """Whether queries are quantised too."""
        return self._scale_NQ is not None

    def page_size(self, kpool: int) -> int:
        """Tokens of a page."""
        return self._codes_NQD.shape[1] * kpool

    def of(self, slot: int, num_pools: int) -> Tensor:
        """FP32 keys [P, D] of the slot's first `num_pools` pools, and whatever follows up to whole tiles."""
        num_rows = -(-num_pools // _POOL_TILE) * _POOL_TILE
        if slot != self._slot or self._keys_PD.shape[0] < num_rows:
            self._slot, self._keys_PD = slot, self._read(slot, num_rows)
        return self._keys_PD[:num_rows]

    def _read(self, slot: int, num_rows: int) -> Tensor:
        pages = self._page_table_SP[slot, : -(-num_rows // self._codes_NQD.shape[1])].long()
        if self._scale_NQ is None:
            keys_PD = self._codes_NQD[pages].float().flatten(0, 1)
        else:
            codes = self._codes_NQD.view(torch.uint8)[pages].view(torch.float8_e4m3fn)
            keys_PD = (codes.float() * self._scale_NQ[pages][..., None]).flatten(0, 1)
        missing = num_rows - keys_PD.shape[0]
        return torch.cat((keys_PD, keys_PD.new_zeros(missing, keys_PD.shape[1]))) if missing > 0 else keys_PD


def _scores(q_BHD: Tensor, weight_BH: Tensor, keys: _Keys, slot_B: Tensor, candidates_B: Tensor) -> Tensor:
    """FP32 scores [B, P]; what lies beyond a request's pools is never looked at."""
    rows, heads = q_BHD.shape[:2]
    q_BHD = _as_scored(q_BHD) if keys.is_fp8 else q_BHD.float()
    width = -(-max(int(candidates_B.max()), 1) // _POOL_TILE) * _POOL_TILE
    scores_BP = torch.zeros(rows, width)
    slots, counts = torch.unique_consecutive(slot_B, return_counts=True)
    ends = counts.cumsum(0).tolist()
    for slot, end, count in zip(slots.tolist(), ends, counts.tolist(), strict=True):
        own = slice(end - count, end)
        num_pools = int(candidates_B[end - 1])
        if slot == 0 or num_pools == 0:
            continue
        q_XD = q_BHD[own].flatten(0, 1)
        for tile, keys_PD in enumerate(keys.of(slot, num_pools).split(_POOL_TILE)):
            products = tiled_matmul(q_XD, keys_PD).view(count, heads, _POOL_TILE).relu_()
            scores_BP[own, tile * _POOL_TILE : (tile + 1) * _POOL_TILE] = torch.bmm(weight_BH[own, None], products)[
                :, 0
            ]
    return scores_BP


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
