"""Bytes that a step moves besides its forward: states to and from snapshots, whole requests to and from the host.

All of it runs in stream order, so a page or slot that a plan gives away may be written by the next step. Swapped bytes
wait in host memory under the ticket that the plan named; nothing here counts how much of it there is.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stack.core.plan import StepPlan, Swap

if TYPE_CHECKING:
    from stack.cache.pages import PagePool
    from stack.cache.states import StatePool


class Moves:
    """Copies between slots, and between the pools and host memory."""

    def __init__(
        self, pages: "PagePool", states: "StatePool", slot_state: Callable[[int], list[Tensor]] = lambda slot: []
    ) -> None:
        """`slot_state` gives what else belongs to a slot, outside the pools."""
        self._pages = pages
        self._states = states
        self._slot_state = slot_state
        self._saved: dict[int, tuple[dict[int, Tensor], list[Tensor]]] = {}

    def before(self, plan: StepPlan) -> None:
        """What the forward needs in place: swaps out, swaps in, restored snapshots."""
        for ticket in plan.drops:
            self._saved.pop(ticket, None)
        for swap in plan.swap_outs:
            self._out(swap)
        for swap in plan.swap_ins:
            self._in(swap)
        self._states.copy(plan.restores)

    def after(self, plan: StepPlan) -> None:
        """What the forward left to keep."""
        self._states.copy(plan.snapshots)

    def _out(self, swap: Swap) -> None:
        pages = {index: self._to_host(self._page(page)) for index, page in zip(swap.indices, swap.pages, strict=True)}
        self._saved[swap.ticket] = (pages, [self._to_host(row) for row in self._slot_rows(swap.slot)])

    def _in(self, swap: Swap) -> None:
        pages, rows = self._saved.pop(swap.ticket)
        for index, page in zip(swap.indices, swap.pages, strict=True):
            self._page(page).copy_(pages[index], non_blocking=True)
        for row, saved in zip(self._slot_rows(swap.slot), rows, strict=True):
            row.copy_(saved, non_blocking=True)

    def _slot_rows(self, slot: int) -> list[Tensor]:
        return [self._states.row(slot), *self._slot_state(slot)]

    def _page(self, page: int) -> Tensor:
        (row,) = self._pages.rows([page])
        return row

    def _to_host(self, row: Tensor) -> Tensor:
        host = torch.empty(row.shape, dtype=row.dtype, pin_memory=row.is_cuda)
        return host.copy_(row, non_blocking=True)
