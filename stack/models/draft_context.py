"""Where a DFlash2 draft's context rows lie: a ring of the window in each slot, or rows in the request's pages.

Pure index arithmetic over device tensors; no waiting, no data-dependent shapes. The ring keeps exactly the window, so
only committed rows may be written: a rejected row would overwrite a row that is still in sight. Rows not to be kept
go to slot 0 or page 0, the sinks.

B requests, T rows, C = window context rows, G key heads, D head width, S slots, N pages of P tokens.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stack.core.memory import DraftLayer


@dataclass(frozen=True, slots=True)
class ContextRows:
    """The context that each request's block sees: where its rows lie, and the position of each (-1: none).

    Row c of request b is `pool[first_BC[b, c], second_BC[b, c]]` in the pools of K and V of every layer.
    """

    pools: list[tuple[Tensor, Tensor]]
    first_BC: Tensor
    second_BC: Tensor
    position_BC: Tensor


@dataclass(frozen=True, slots=True)
class DraftContext:
    """Finds and writes the context rows of all draft layers."""

    layers: tuple[DraftLayer, ...]
    window: int
    kind: Literal["ring", "full"]

    def read(self, slot_B: Tensor, length_B: Tensor, page_table_SP: Tensor) -> ContextRows:
        """Where the last `window` committed rows of each request lie; `length_B` tokens are committed."""
        step_C = torch.arange(self.window, device=length_B.device, dtype=length_B.dtype)
        if self.kind == "ring":
            newest_B1 = length_B[:, None] - 1
            position_BC = newest_B1 - torch.remainder(newest_B1 - step_C, self.window)
            first_BC, second_BC = slot_B.long()[:, None].expand_as(position_BC), step_C.long().expand_as(position_BC)
        else:
            position_BC = length_B[:, None] - self.window + step_C
            first_BC, second_BC = self._in_pages(slot_B[:, None], position_BC.clamp(min=0), page_table_SP)
        pools = [(layer.k, layer.v) for layer in self.layers]
        return ContextRows(pools, first_BC, second_BC, torch.where(position_BC >= 0, position_BC, -1))

    def write(
        self,
        rows: list[tuple[Tensor, Tensor]],
        slot_T: Tensor,
        position_T: Tensor,
        keep_T: Tensor,
        page_table_SP: Tensor,
    ) -> None:
        """Put K and V rows [T, G, D] of every layer at their positions where `keep_T`, into the sink elsewhere."""
        slot_T = torch.where(keep_T, slot_T, torch.zeros_like(slot_T)).long()
        position_T = torch.where(keep_T, position_T, torch.zeros_like(position_T)).long()
        if self.kind == "ring":
            first, second = slot_T, torch.remainder(position_T, self.window)
        else:
            first, second = self._in_pages(slot_T, position_T, page_table_SP)
        for layer, (k_TGD, v_TGD) in zip(self.layers, rows, strict=True):
            zero = torch.zeros((), dtype=layer.k.dtype, device=layer.k.device)
            keep = keep_T[:, None, None]
            layer.k[first, second] = torch.where(keep, k_TGD.to(layer.k.dtype), zero)
            layer.v[first, second] = torch.where(keep, v_TGD.to(layer.v.dtype), zero)

    def _in_pages(self, slot: Tensor, position: Tensor, page_table_SP: Tensor) -> tuple[Tensor, Tensor]:
        size = self.layers[0].k.shape[1]
        page = page_table_SP[slot.long(), torch.div(position, size, rounding_mode="floor").long()]
        return page.long(), torch.remainder(position, size).long()
