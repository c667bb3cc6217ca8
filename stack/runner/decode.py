"""Decode steps: draft, verify, accept, commit over static buffers, one `DecodeBatch` a bucket.

R requests including padding, W rows a request. Nothing here reads a tensor on the host, so a bucket can be captured:
its inputs are `slot_R` and the slot table, its outputs `count_R` and `output_RW`, all at fixed addresses.
"""

import time
from bisect import bisect_left
from collections.abc import Callable
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


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a bucket's rows always are."""

    request_T: Tensor
    start_R1: Tensor
    ring_R: Tensor
    offset_W: Tensor

    @classmethod
    def of(cls, size: int, width: int, device: torch.device) -> "_Rows":
        """All int32."""

        def count(start: int, stop: int) -> Tensor:
            return torch.arange(start, stop, dtype=torch.int32, device=device)

        return cls(
            count(0, size).repeat_interleave(width), count(0, size + 1) * width, count(1, size + 1), count(0, width)
        )


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
        self._rows: dict[int, _Rows] = {}

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

    def capture(self, max_context: int, say: Callable[[str], None]) -> None:
        """Capture the phases of a greedy step of every bucket for up to `max_context` tokens a request, largest first.

        Each bucket first runs eagerly on the sink, so that nothing compiles or allocates in a capture. `say` is told
        of each: most of the time goes into kernels that are compiled for the first time.
        """
        for number, size in enumerate(sorted(self._buckets, reverse=True), start=1):
            begun_s = time.perf_counter()
            cycle = self._cycle(size)
            cycle.batch.max_context, cycle.batch.all_greedy = max_context, True
            phases = {phase: partial(self._run_phase, phase, cycle) for phase in PHASES}
            self._graphs.capture(size, max_context, phases)
            rows = f"{size} requests x {cycle.batch.width} rows"
            spent_s = time.perf_counter() - begun_s
            say(f"captured decode steps of {rows} in {spent_s:.1f} s ({number} of {len(self._buckets)})")

    def _run_phase(self, phase: str, cycle: "Cycle") -> None:
        {"draft": self._draft, "verify": self._verify, "accept": self._accept, "commit": self._commit}[phase](cycle)

    def _draft(self, cycle: "Cycle") -> None:
        """Pending tokens and positions of the step's rows, from the slot table; then the drafts."""
        batch, table = cycle.batch, self._slots
        batch.index_R.copy_(batch.slot_R)
        torch.clamp(batch.slot_R, max=1, out=batch.live_R)
        torch.index_select(table.pending_S, 0, batch.index_R, out=batch.token_RW[:, 0])
        length_R1 = table.length_S.index_select(0, batch.index_R)[:, None]
        torch.addcmul(length_R1, batch.live_R[:, None], self._rows[batch.size].offset_W, out=batch.position_RW)
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
        pending_R = batch.output_RW[:, 0]
        if batch.width > 1:
            last_R = (batch.count_R.long() - 1).clamp_(min=0)
            pending_R = batch.output_RW.gather(1, last_R[:, None])[:, 0]
        self._slots.commit_decode(batch.index_R, batch.count_R, pending_R)

    def _limit(self, batch: DecodeBatch) -> None:
        """No request passes its limit; the sink's is 0, so padding commits nothing."""
        limit_R, generated_R = (
            column_S.index_select(0, batch.index_R) for column_S in (self._slots.limit_S, self._slots.generated_S)
        )
        torch.minimum(batch.count_R, limit_R.sub_(generated_R), out=batch.count_R).clamp_(min=0)

    def _context(self, batch: DecodeBatch) -> ForwardContext:
        width, rows = batch.width, self._rows[batch.size]
        position_T = batch.position_RW.view(-1)
        index_T = batch.index_R if width == 1 else batch.index_R.repeat_interleave(width)
        return ForwardContext(
            kind="decode" if width == 1 else "verify",
            width=width,
            max_context=batch.max_context,
            request_T=rows.request_T,
            position_T=position_T,
            write_T=self._slots.token_slots(index_T, position_T, self._page_size),
            start_R1=rows.start_R1,
            slot_R=batch.slot_R,
            page_table_SP=self._slots.page_table_SP,
            ring_R=rows.ring_R * batch.live_R if width > 1 else None,
        )

    def _cycle(self, size: int) -> "Cycle":
        if size not in self._cycles:
            self._cycles[size] = Cycle(self._new_batch(size))
        return self._cycles[size]

    def _new_batch(self, size: int) -> DecodeBatch:
        width = self._speculator.width
        self._rows[size] = _Rows.of(size, width, self._device)

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self._device)

        return DecodeBatch(
            slots=self._slots,
            slot_R=zeros(torch.int32, size),
            index_R=zeros(torch.int64, size),
            live_R=zeros(torch.int32, size),
            max_context=0,
            all_greedy=False,
            token_RW=zeros(torch.int64, size, width),
            position_RW=zeros(torch.int32, size, width),
            count_R=zeros(torch.int32, size),
            output_RW=zeros(torch.int64, size, width),
        )
