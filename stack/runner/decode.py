"""Decode steps: draft, verify, accept, commit over static buffers, one `DecodeBatch` a bucket.

R requests including padding, W rows a request. Nothing here reads a tensor on the host, so a bucket can be captured:
its inputs are `slot_R` and the slot table, its outputs `count_R` and `output_RW`, all at fixed addresses.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stack.core.forward import ForwardContext
from stack.core.memory import ModelMemory
from stack.runner.graphs import DecodeGraphs
from stack.runner.marks import Marks
from stack.runner.slots import SlotTable
from stack.runner.speculator import DecodeBatch, Speculator

if TYPE_CHECKING:
    from stack.models import Hidden, TargetModel


PHASES = ("draft", "verify", "accept", "commit")


@dataclass(slots=True)
class Cycle:
    """One bucket's step: its static buffers, and what a phase leaves for a later one and is dropped by it."""

    batch: DecodeBatch
    context: ForwardContext | None = None
    hidden: "Hidden | None" = None
    logits_TV: Tensor | None = None


class DecodeSteps:
    """Runs the four phases for any number of requests, at the smallest bucket that holds them."""

    def __init__(
        self,
        model: "TargetModel",
        memory: ModelMemory,
        slots: SlotTable,
        speculator: Speculator,
        *,
        page_size: int,
        buckets: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self._model = model
        self._memory = memory
        self._slots = slots
        self._speculator = speculator
        self._page_size = page_size
        self._buckets = buckets
        self._device = device
        self._graphs = DecodeGraphs()
        self._cycles: dict[int, Cycle] = {}
        self._rows: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def bucket(self, num_requests: int) -> int:
        """Rows of requests that a batch of `num_requests` runs with."""
        at = bisect_left(self._buckets, num_requests)
        return self._buckets[at] if at < len(self._buckets) else num_requests

    def run(self, slot_R: Tensor, max_context: int, marks: Marks, *, all_greedy: bool) -> DecodeBatch:
        """One step for the slots in `slot_R` (int32, already padded to a bucket); `marks` gets its phases."""
        size = int(slot_R.shape[0])
        cycle = self._cycle(size)
        cycle.batch.slot_R.copy_(slot_R)
        cycle.batch.max_context, cycle.batch.all_greedy = max_context, all_greedy
        is_captured = all_greedy and self._graphs.holds(size, max_context)
        marks.begin()
        for phase in PHASES:
            if is_captured:
                self._graphs.replay(size, phase)
            else:
                self._run_phase(phase, cycle)
            marks.mark(phase)
        return cycle.batch

    def capture(self, max_context: int) -> None:
        """Capture the phases of a greedy step of every bucket for up to `max_context` tokens a request, largest first.

        Each bucket first runs eagerly on the sink, so that nothing compiles or allocates in a capture.
        """
        for size in sorted(self._buckets, reverse=True):
            cycle = self._cycle(size)
            cycle.batch.max_context, cycle.batch.all_greedy = max_context, True
            phases = {phase: partial(self._run_phase, phase, cycle) for phase in PHASES}
            self._graphs.capture(size, max_context, phases)

    def _run_phase(self, phase: str, cycle: "Cycle") -> None:
        {"draft": self._draft, "verify": self._verify, "accept": self._accept, "commit": self._commit}[phase](cycle)

    def _draft(self, cycle: "Cycle") -> None:
        """Pending tokens and positions of the step's rows, from the slot table; then the drafts."""
        batch = cycle.batch
        slot_R = batch.slot_R.long()
        batch.token_RW[:, 0] = self._slots.pending_S[slot_R]
        offset_W = torch.arange(batch.width, dtype=torch.int32, device=self._device)
        live_R1 = (batch.slot_R > 0).int()[:, None]
        batch.position_RW.copy_((self._slots.length_S[slot_R][:, None] + offset_W) * live_R1)
        self._speculator.draft(batch)

    def _verify(self, cycle: "Cycle") -> None:
        """The target's forward over all rows."""
        token_T = cycle.batch.token_RW.view(-1)
        cycle.context = self._context(cycle.batch)
        cycle.hidden = self._model.forward(token_T, cycle.context, self._memory, taps=self._speculator.taps)
        cycle.logits_TV = self._model.logits(cycle.hidden.last_TC)

    def _accept(self, cycle: "Cycle") -> None:
        """Which rows stay, within each request's limit."""
        batch, logits_TV = cycle.batch, cycle.logits_TV
        assert logits_TV is not None
        self._speculator.accept(batch, logits_TV.view(*batch.token_RW.shape, -1))
        self._limit(batch)
        cycle.logits_TV = None

    def _commit(self, cycle: "Cycle") -> None:
        """States, drafter and slot table move on."""
        batch = cycle.batch
        assert cycle.hidden is not None and cycle.context is not None
        self._speculator.commit(batch, cycle.hidden, cycle.context, self._memory)
        cycle.hidden = cycle.context = None
        last_R1 = (batch.count_R.long() - 1).clamp_min(0)[:, None]
        pending_R = batch.output_RW.gather(1, last_R1)[:, 0]
        self._slots.commit_decode(batch.slot_R, batch.count_R, pending_R)

    def _limit(self, batch: DecodeBatch) -> None:
        slot_R = batch.slot_R.long()
        room_R = self._slots.limit_S[slot_R] - self._slots.generated_S[slot_R]
        allowed_R = torch.minimum(batch.count_R, room_R.clamp_min(0)) * (batch.slot_R > 0)
        batch.count_R.copy_(allowed_R)

    def _context(self, batch: DecodeBatch) -> ForwardContext:
        width = batch.width
        request_T, start_R1, ring_R = self._rows[int(batch.slot_R.shape[0])]
        position_T = batch.position_RW.view(-1)
        slot_T = batch.slot_R[request_T.long()]
        return ForwardContext(
            kind="decode" if width == 1 else "verify",
            width=width,
            max_context=batch.max_context,
            request_T=request_T,
            position_T=position_T,
            write_T=self._slots.token_slots(slot_T, position_T, self._page_size),
            start_R1=start_R1,
            slot_R=batch.slot_R,
            page_table_SP=self._slots.page_table_SP,
            ring_R=ring_R * (batch.slot_R > 0),
        )

    def _cycle(self, size: int) -> "Cycle":
        if size not in self._cycles:
            self._cycles[size] = Cycle(self._new_batch(size))
        return self._cycles[size]

    def _new_batch(self, size: int) -> DecodeBatch:
        width = self._speculator.width

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self._device)

        rows_T = torch.arange(size * width, dtype=torch.int32, device=self._device)
        request_T = torch.div(rows_T, width, rounding_mode="floor").int()
        start_R1 = torch.arange(size + 1, dtype=torch.int32, device=self._device) * width
        ring_R = torch.arange(1, size + 1, dtype=torch.int32, device=self._device)
        self._rows[size] = (request_T, start_R1, ring_R)
        return DecodeBatch(
            slots=self._slots,
            slot_R=zeros(torch.int32, size),
            max_context=0,
            all_greedy=False,
            token_RW=zeros(torch.int64, size, width),
            position_RW=zeros(torch.int32, size, width),
            count_R=zeros(torch.int32, size),
            output_RW=zeros(torch.int64, size, width),
        )
