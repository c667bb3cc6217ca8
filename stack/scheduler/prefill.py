"""Which prompt tokens run in the next step.

First come, first served: the chunk budget goes to prompts under way in order of arrival, then to newly admitted ones. A
chunk that does not end its prompt ends at a multiple of the page size, where a state may be kept. A prompt that finds
no page gives way: the youngest one under way returns its memory and is queued again at the front.
"""

from stack.config import SchedulerConfig
from stack.core.errors import ConfigError
from stack.core.plan import PrefillRow, SlotInit, StepPlan
from stack.scheduler.book import Book
from stack.scheduler.memory import Memory
from stack.scheduler.request import Phase, Request


class PrefillPlanner:
    """Admits prompts and cuts them into chunks."""

    def __init__(self, book: Book, memory: Memory, config: SchedulerConfig, *, max_running: int, sends: bool) -> None:
        self._book = book
        self._memory = memory
        self._max_running = max_running
        self._sends = sends
        self._budget = min(config.chunk_tokens, config.max_prefill_tokens)
        self._reserve = 0 if sends else config.reserve_output_tokens
        self._blocked_at = -1
        if self._budget < memory.page_size:
            raise ConfigError(
                f"scheduler.chunk_tokens ({self._budget}) must not be below cache.page_size ({memory.page_size})"
            )

    def fill(self, plan: StepPlan) -> list[Request]:
        """Add prompt chunks to `plan`; the requests of its rows, in order."""
        batch: list[Request] = []
        budget = self._budget
        for request in list(self._book.prefilling):
            if budget <= 0:
                break
            if request.phase is Phase.PREFILLING:
                budget -= self._add_chunk(plan, batch, request, budget)
        while budget > 0 and (admitted := self._admit(plan)) is not None:
            taken = self._add_chunk(plan, batch, admitted, budget)
            if not taken:
                break
            budget -= taken
        for request in batch:
            request.num_inflight += 1
            self._keep(plan, request)
            if request.num_computed == request.num_prompt:
                self._end(request)
        return batch

    def give_way(self) -> bool:
        """Send the youngest prompt under way back to the queue. False when there is none."""
        if not self._book.prefilling:
            return False
        request = self._book.prefilling.pop()
        request.phase = Phase.YIELDING
        request.num_requeues += 1
        self._book.totals.requeues += 1
        self._book.yielding.append(request)
        return True

    def _admit(self, plan: StepPlan) -> Request | None:
        book, memory = self._book, self._memory
        if not book.waiting or book.swapped or book.yielding or book.num_admitted >= self._max_running:
            return None
        if memory.epoch == self._blocked_at:
            return None
        request = book.waiting[0]
        if not memory.attach(request, promised=self._pages_promised(), reserve=self._reserve):
            self._blocked_at = memory.epoch
            return None
        book.waiting.popleft()
        request.phase = Phase.PREFILLING
        request.started_s = request.started_s or book.clock.now_s()
        book.prefilling.append(request)
        book.totals.cached_tokens += request.num_cached
        plan.inits.append(first_values(request, length=request.num_computed, pending=0, generated=0))
        plan.entries.extend(request.slot, 0, request.pages)
        if request.lease and request.lease.restore_slot:
            plan.restores.append((request.lease.restore_slot, request.slot))
        return request

    def _pages_promised(self) -> int:
        """Pages that prompts under way still need."""
        return sum(self._memory.pages_for(r.num_prompt) - len(r.pages) for r in self._book.prefilling)

    def _add_chunk(self, plan: StepPlan, batch: list[Request], request: Request, budget: int) -> int:
        """Add the request's next chunk; its tokens, or 0 when the budget or the memory does not reach."""
        memory = self._memory
        start = request.num_computed
        end = memory.chunk_end(request, budget)
        if end <= start:
            return 0
        first_new = len(request.pages)
        pages = memory.grow(request, end)
        if pages is None:
            if not self._book.is_memory_coming:
                self.give_way()
            return 0
        plan.entries.extend(request.slot, first_new, pages)
        is_last = end == request.num_prompt
        next_token = -1 if is_last else int(request.prompt[end])
        plan.prefill.append(PrefillRow(request.slot, start, request.prompt[start:end], next_token))
        plan.max_context = max(plan.max_context, end)
        request.num_computed = end
        batch.append(request)
        return end - start

    def _keep(self, plan: StepPlan, request: Request) -> None:
        """Share what the step computes, with prompts of later steps: those of this one run before it exists."""
        if kept := self._memory.keep(request, request.num_computed):
            plan.snapshots.append((request.slot, kept))

    def _end(self, request: Request) -> None:
        self._book.prefilling.remove(request)
        if self._sends and request.bootstrap is not None:
            request.phase = Phase.SENDING
            request.is_held = True
            self._book.sending.append(request)
        else:
            request.phase = Phase.RUNNING
            self._book.running.append(request)


def first_values(request: Request, *, length: int, pending: int, generated: int) -> SlotInit:
    """What a slot's device state starts with."""
    sampling = request.sampling
    return SlotInit(
        slot=request.slot,
        length=length,
        pending=pending,
        generated=generated,
        limit=request.limit,
        seed=sampling.seed,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
    )
