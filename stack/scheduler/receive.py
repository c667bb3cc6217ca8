"""Decode instance: who may hold memory while its cache is on the way, and what happens when it arrives or does not.

A request needs pages and a slot before its cache can travel, so a few beyond the running limit may hold some: without
them the batch would drain while it waits. First come, first served; whoever does not fit blocks those behind it.
"""

from stack.scheduler.book import Book
from stack.scheduler.memory import Memory
from stack.scheduler.request import Phase, Request


class Receiver:
    """Reserves memory for prompts that another instance computes."""

    def __init__(self, book: Book, memory: Memory, *, most_holding: int, reserve: int) -> None:
        self._book = book
        self._memory = memory
        self._most_holding = most_holding
        self._reserve = reserve
        self._blocked_at = -1

    def reserve(self) -> list[Request]:
        """Requests that just got their memory; the caller starts their transfers."""
        book, memory = self._book, self._memory
        started: list[Request] = []
        while book.waiting and not book.swapped and book.num_holding < self._most_holding:
            if memory.epoch == self._blocked_at:
                break
            if not memory.attach_whole(book.waiting[0], reserve=self._reserve):
                self._blocked_at = memory.epoch
                break
            request = book.waiting.popleft()
            request.phase = Phase.RECEIVING
            request.is_held = True
            request.started_s = book.clock.now_s()
            book.receiving.append(request)
            book.totals.cached_tokens += request.num_cached
            started.append(request)
        return started

    def arrived(self, request: Request) -> None:
        """The cache of a request is complete: it may run, and its pages may be shared."""
        book = self._book
        request.is_held = False
        book.remove(request)
        request.phase = Phase.ARRIVED
        request.arrived_s = book.clock.now_s()
        book.arrived.append(request)
        self._memory.keep_arrived(request)
