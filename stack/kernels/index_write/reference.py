"""One row at a time, in FP64 up to the pooled key."""

import torch
from torch import Tensor

from stack.kernels.index_rows import quantize_index_rows


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
    kpool, ring, num_pools = ape_KD.shape[0], tail_SR2D.shape[1], codes_NQD.shape[1]
    for row, target in enumerate(write_T.tolist()):
        if target == 0:
            continue
        slot, position = int(slot_R[request_T[row]]), int(position_T[row])
        x = ik_TD[row].double()
        key = (x - x.mean()) / (x.var(correction=0) + 1e-6).sqrt() * norm_weight_D.double() + norm_bias_D.double()
        tail_SR2D[slot, position % ring, 0] = key.to(ik_TD.dtype).to(tail_SR2D.dtype)
        tail_SR2D[slot, position % ring, 1] = ig_TD[row].to(tail_SR2D.dtype)
        if (position + 1) % kpool:
            continue
        members = torch.stack([tail_SR2D[slot, (position - back) % ring] for back in range(kpool - 1, -1, -1)]).double()
        pooled = (torch.softmax(members[:, 1] + ape_KD.double(), 0) * members[:, 0]).sum(0).float()
        page = int(page_table_SP[slot, position // (kpool * num_pools)])
        pool = position // kpool % num_pools
        if scale_NQ is None:
            codes_NQD[page, pool] = pooled.to(codes_NQD.dtype)
        else:
            codes_NQD[page, pool], scale_NQ[page, pool] = quantize_index_rows(pooled)
