"""All rows at once: norm, pool what is complete, store rows, then refresh the rings (CPU).

T rows, D key width, kp slots of a pool, N pages of Q pools, S state slots, R ring entries a slot.
"""

import torch
from torch import Tensor
from torch.nn import functional

from stack.kernels.index_rows import quantize_index_rows

NORM_EPS = 1e-6


def index_write(
    ik_TD: Tensor,
    ig_TD: Tensor,
    norm_weight_D: Tensor,
    norm_bias_D: Tensor,
    ape_KD: Tensor,
    tail_SR2D: Tensor,
    codes_NQD: Tensor,
    scale_NQ: Tensor | None,
    page_table_SP: Tensor,
    slot_R: Tensor,
    request_T: Tensor,
    position_T: Tensor,
    start_R1: Tensor,
    write_T: Tensor,
) -> None:
    """Store the pools that these rows close and keep the rows in their requests' rings."""
    real_L = (write_T > 0).nonzero()[:, 0]
    key_TD = functional.layer_norm(ik_TD.float(), ik_TD.shape[1:], norm_weight_D.float(), norm_bias_D.float(), NORM_EPS)
    entry_T2D = torch.stack((key_TD.to(ik_TD.dtype), ig_TD), 1)
    request_T, position_T = request_T.long(), position_T.long()
    slot_T = slot_R.long()[request_T]
    first_T, last_T = start_R1.long()[request_T], start_R1.long()[request_T + 1] - 1
    closing = real_L[(position_T[real_L] + 1) % ape_KD.shape[0] == 0]
    pooled = _pool(entry_T2D, tail_SR2D, ape_KD, closing, slot_T, position_T, first_T)
    _store(pooled, codes_NQD, scale_NQ, write_T[closing], ape_KD.shape[0])
    ring = tail_SR2D.shape[1]
    kept = real_L[last_T[real_L] - real_L < ring]
    tail_SR2D[slot_T[kept], position_T[kept] % ring] = entry_T2D[kept].to(tail_SR2D.dtype)


def _pool(
    entry_T2D: Tensor,
    tail_SR2D: Tensor,
    ape_KD: Tensor,
    closing_L: Tensor,
    slot_T: Tensor,
    position_T: Tensor,
    first_T: Tensor,
) -> Tensor:
    kpool, ring = ape_KD.shape[0], tail_SR2D.shape[1]
    back_K = torch.arange(kpool - 1, -1, -1, device=closing_L.device)
    row_LK = closing_L[:, None] - back_K
    here_LK = row_LK >= first_T[closing_L][:, None]
    kept_LK2D = tail_SR2D[slot_T[closing_L][:, None], (position_T[closing_L][:, None] - back_K) % ring]
    entry_LK2D = torch.where(
        here_LK[..., None, None], entry_T2D[row_LK.clamp(min=0)], kept_LK2D.to(entry_T2D.dtype)
    ).float()
    logits_LKD = entry_LK2D[:, :, 1] + ape_KD.float()
    weights_LKD = (logits_LKD - logits_LKD.amax(1, keepdim=True)).exp()
    return _sum_slots(weights_LKD * entry_LK2D[:, :, 0]) / _sum_slots(weights_LKD)


def _sum_slots(x_LKD: Tensor) -> Tensor:
    first_LD, *rest = x_LKD.unbind(1)
    total_LD = first_LD.clone()
    for slot_LD in rest:
        total_LD += slot_LD
    return total_LD


def _store(pooled_LD: Tensor, codes_NQD: Tensor, scale_NQ: Tensor | None, write_L: Tensor, kpool: int) -> None:
    pool_L = write_L // kpool
    page, row = pool_L // codes_NQD.shape[1], pool_L % codes_NQD.shape[1]
    if scale_NQ is None:
        codes_NQD[page, row] = pooled_LD.to(codes_NQD.dtype)
        return
    codes, scale = quantize_index_rows(pooled_LD)
    codes_NQD.view(torch.uint8)[page, row] = codes.view(torch.uint8)
    scale_NQ[page, row] = scale
