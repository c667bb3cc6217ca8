"""Which requests decode in the next step, and who gives way when pages run out.

Pages are taken to an upper bound, since the host learns a step's lengths one step late: every launched step may add up
to `width` tokens, and so may this one. Decode never recomputes: the youngest request is swapped to host memory whole,
and comes back before anybody younger is admitted.
"""

from collections import deque
from collections.abc import Callable

from stack.core.plan import StepPlan, Swap
from stack.scheduler.book import Book
from stack.scheduler.memory import Memory
from stack.scheduler.prefill import first_values
from stack.scheduler.request import Phase, Request


class DecodePlanner:
    """Grows, swaps and lists the running requests."""

    def __init__(
        self, book: Book, memory: Memory, *, width: int, max_running: int, yield_prefill: Callable[[], bool]
    ) -> None:
        self._book = book
        self._memory = memory
        self._width = width
        self._max_running = max_running
        self._yield_prefill = yield_prefill
        self._next_ticket = 1

    def fill(self, plan: StepPlan) -> list[Request]:
        """Add running requests to `plan`; the requests of its rows, in order."""
        self._join(plan)
        self._resume(plan)
        batch: list[Request] = []
        rows, width, page_size, running = plan.decode_slots, self._width, self._memory.page_size, Phase.RUNNING
        longest = 0
        for request in list(self._book.running):
            limit, lease = request.limit, request.lease
            most = len(request.output) + request.num_inflight * width
            if request.phase is not running or lease is None:
                continue
            if most >= limit:
                if len(request.output) + request.num_inflight >= limit:
                    continue
                most = limit
            bound = request.num_prompt + most - 1 + width
            if bound > len(lease.pages) * page_size and not self._grow(plan, request, bound):
                continue
            if bound > longest:
                longest = bound
            rows.append(lease.slots[0])
            batch.append(request)
        for request in batch:
            request.num_inflight += 1
        plan.max_context = max(plan.max_context, longest)
        plan.all_greedy = all(request.is_greedy for request in batch)
        return batch

    def swap_out(self, plan: StepPlan, request: Request) -> None:
        """Move a request to host memory; its pages return when the step that copies them was collected."""
        book = self._book
        indices = self._memory.suspend(request)
        if indices is None:
            error = "the instance ran out of pages and of swap space; raise cache.swap_bytes or lower the load"
            book.say_last(request, [], "abort", error=error, status=503)
            return
        request.ticket = self._next_ticket
        self._next_ticket += 1
        request.num_swaps += 1
        book.totals.swaps += 1
        plan.swap_outs.append(Swap(request.ticket, request.slot, indices, [request.pages[i] for i in indices]))
        book.remove(request)
        request.phase = Phase.SWAPPED
        book.swapped.append(request)
        book.swapped = deque(sorted(book.swapped, key=lambda r: r.arrival_s))

    def _join(self, plan: StepPlan) -> None:
        """Requests whose cache arrived take their places, behind older ones that gave way unless nobody runs."""
        book = self._book
        while book.arrived and len(book.running) < self._max_running:
            is_next = not book.swapped or book.arrived[0].arrival_s < book.swapped[0].arrival_s
            if book.running and not is_next:
                return
            request = book.arrived.popleft()
            request.phase = Phase.RUNNING
            book.running.append(request)
            self._place(plan, request)

    def _resume(self, plan: StepPlan) -> None:
        """Bring swapped requests back while they fit and leave a page to grow for everyone who then runs."""
        book, memory = self._book, self._memory
        while book.swapped and len(book.running) < self._max_running:
            request = book.swapped[0]
            if request.num_inflight or request.slot:
                return
            others = len(book.running)
            indices = memory.resume(request, spare=others + 1 if others else 0)
            if indices is None:
                return
            book.swapped.popleft()
            request.phase = Phase.RUNNING
            book.running.append(request)
            plan.swap_ins.append(Swap(request.ticket, request.slot, indices, [request.pages[i] for i in indices]))
            request.ticket = 0
            self._place(plan, request)

    def _place(self, plan: StepPlan, request: Request) -> None:
        plan.inits.append(
            first_values(request, length=request.length, pending=request.output[-1], generated=len(request.output))
        )
        plan.entries.extend(request.slot, 0, request.pages)

    def _grow(self, plan: StepPlan, request: Request, bound: int) -> bool:
        first_new = len(request.pages)
        pages = self._memory.grow(request, bound)
        if pages is None:
            self._make_way(plan, request)
            return False
        plan.entries.extend(request.slot, first_new, pages)
        return True

    def _make_way(self, plan: StepPlan, needy: Request) -> None:
        """Free pages for `needy`: unfinished prompts first, then who arrived and waits, then the youngest who runs.

        That may be `needy` itself, unless it runs alone: then others end or arrive, and it waits for them.
        """
        book = self._book
        if book.is_memory_coming or plan.swap_ins or self._yield_prefill():
            return
        if book.arrived:
            self.swap_out(plan, book.arrived[-1])
        elif len(book.running) > 1:
            self.swap_out(plan, book.running[-1])
