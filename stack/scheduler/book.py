"""Who is where: every request the instance knows, by phase, and the events that leave.

Shared by the planners of one scheduler. Pure Python over integers; knows no tensors, sockets or transfers.
Invariant: a request is in the list of its phase and in no other; a finished one stays in `leaving` until no launched
step and no transfer touches its memory.
"""

from collections import deque
from dataclasses import dataclass, field

from stack.core.clock import Clock
from stack.core.messages import Tokens
from stack.scheduler.request import Phase, Request


@dataclass(slots=True)
class Totals:
    """Counters since the start."""

    requests: int = 0
    finished: int = 0
    aborted: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    verifies: int = 0
    accepted_drafts: int = 0
    swaps: int = 0
    requeues: int = 0


@dataclass(slots=True)
class Book:
    """The requests of one instance."""

    clock: Clock
    waiting: deque[Request] = field(default_factory=deque)
    prefilling: list[Request] = field(default_factory=list)
    yielding: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    swapped: deque[Request] = field(default_factory=deque)
    receiving: list[Request] = field(default_factory=list)
    arrived: deque[Request] = field(default_factory=deque)
    sending: list[Request] = field(default_factory=list)
    leaving: list[Request] = field(default_factory=list)
    by_rid: dict[str, Request] = field(default_factory=dict)
    messages: list[Tokens] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)

    @property
    def num_admitted(self) -> int:
        """Requests that count against the running limit."""
        return len(self.prefilling) + len(self.yielding) + len(self.running) + len(self.swapped)

    @property
    def num_holding(self) -> int:
        """Requests of a decode instance that hold memory or will want it back: running, swapped, arrived, on the
        way."""
        return len(self.running) + len(self.swapped) + len(self.arrived) + len(self.receiving)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left, memory included."""
        return not self.by_rid and not self.leaving

    @property
    def is_memory_coming(self) -> bool:
        """Whether pages return once the steps under way were collected, so that nobody more need give way."""
        return bool(
            self.yielding
            or any(not request.is_held for request in self.leaving)
            or any(request.slot for request in self.swapped)
        )

    def say(self, request: Request, token_ids: list[int]) -> None:
        """Tell the client about new tokens."""
        self.messages.append(
            Tokens(
                rid=request.rid,
                token_ids=token_ids,
                cached_tokens=request.num_cached,
                num_verify=request.num_verify,
                num_accepted_drafts=request.num_accepted_drafts,
                num_swaps=request.num_swaps,
            )
        )

    def say_last(
        self,
        request: Request,
        token_ids: list[int],
        finish: str,
        *,
        matched: int | None = None,
        error: str | None = None,
        status: int = 200,
    ) -> None:
        """The last message about a request; it leaves the list of its phase and waits in `leaving`."""
        self.remove(request)
        request.phase = Phase.FINISHED
        request.finished_s = self.clock.now_s()
        self.by_rid.pop(request.rid, None)
        self.leaving.append(request)
        if finish == "abort":
            self.totals.aborted += 1
        else:
            self.totals.finished += 1
        self.messages.append(
            Tokens(
                rid=request.rid,
                token_ids=token_ids,
                finish=finish,
                matched=matched,
                error=error,
                status=status,
                cached_tokens=request.num_cached,
                num_verify=request.num_verify,
                num_accepted_drafts=request.num_accepted_drafts,
                num_swaps=request.num_swaps,
                timing=timing_of(request) | request.transfer,
            )
        )

    def remove(self, request: Request) -> None:
        """Take a request out of the list of its phase."""
        where: dict[Phase, list[Request] | deque[Request]] = {
            Phase.QUEUED: self.waiting,
            Phase.PREFILLING: self.prefilling,
            Phase.YIELDING: self.yielding,
            Phase.RUNNING: self.running,
            Phase.SWAPPED: self.swapped,
            Phase.RECEIVING: self.receiving,
            Phase.ARRIVED: self.arrived,
            Phase.SENDING: self.sending,
        }
        where[request.phase].remove(request)


def timing_of(request: Request) -> dict[str, float]:
    """Seconds a request spent in queue, prefill, transfer and decode; a stage that it never reached is left out."""
    end_s = request.finished_s
    timing = {"queue_s": (request.started_s or end_s) - request.arrival_s}
    if request.prefilled_s:
        timing["prefill_s"] = request.prefilled_s - request.started_s
    if request.arrived_s:
        timing["transfer_s"] = request.arrived_s - request.started_s
    decode_from_s = request.arrived_s or request.prefilled_s
    if decode_from_s:
        timing["decode_s"] = end_s - decode_from_s
    return timing
