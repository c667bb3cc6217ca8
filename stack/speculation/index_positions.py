"""Index sets as token slots (where the bytes lie here) and as positions (the same on every instance).

R requests, J entries of a set (-1 padded), P pages of a request, N pages of the pool.
"""

import torch
from torch import Tensor


def positions_of(index_RJ: Tensor, slot_R: Tensor, page_table_SP: Tensor, page_size: int, num_pages: int) -> Tensor:
    """int32 [R, J]: the position of each token slot in its request; -1 stays -1."""
    table_RP = page_table_SP[slot_R].long()
    order_RP = torch.arange(table_RP.shape[1], device=table_RP.device).expand_as(table_RP)
    page_order_RN = torch.zeros(table_RP.shape[0], num_pages, dtype=torch.int64, device=table_RP.device)
    page_order_RN.scatter_(1, table_RP, order_RP)
    found_RJ = index_RJ.long().clamp_min(0)
    page_RJ = torch.div(found_RJ, page_size, rounding_mode="floor")
    position_RJ = page_order_RN.gather(1, page_RJ) * page_size + found_RJ - page_RJ * page_size
    return torch.where(index_RJ >= 0, position_RJ, -1).int()


def token_slots_of(position_RJ: Tensor, slot_R: Tensor, page_table_SP: Tensor, page_size: int) -> Tensor:
    """int32 [R, J]: the inverse of `positions_of`."""
    found_RJ = position_RJ.long().clamp_min(0)
    order_RJ = torch.div(found_RJ, page_size, rounding_mode="floor")
    page_RJ = page_table_SP[slot_R].long().gather(1, order_RJ)
    return torch.where(position_RJ >= 0, page_RJ * page_size + found_RJ - order_RJ * page_size, -1).int()
