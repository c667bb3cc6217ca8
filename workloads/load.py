"""Load plans: what is sent when. A closed loop keeps slots busy, an open loop keeps to a timetable.

Both take tickets built beforehand and hand every exchange to `done`. Neither knows of HTTP.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from workloads.spec import ConstantLoad, PoissonLoad, Workload
from workloads.stream import Exchange, Ticket, now_s
from workloads.traffic import Conversation

Send = Callable[[Ticket, float | None], Awaitable[Exchange]]
Talk = Sequence[Ticket]
"""The tickets of one conversation, in order."""


class Remaining(Protocol):
    """Measured requests that have not ended, in all processes of the client."""

    def take(self) -> None:
        """One more has ended."""
        ...

    def is_positive(self) -> bool:
        """Whether any is left."""
        ...


class LocalRemaining:
    """The count of a client with one process."""

    def __init__(self, count: int) -> None:
        self._count = count

    def take(self) -> None:
        """One more has ended."""
        self._count -= 1

    def is_positive(self) -> bool:
        """Whether any is left."""
        return self._count > 0


class ClosedLoop:
    """`slots` conversations at a time; a slot that finishes one takes the next."""

    def __init__(self, *, slots: int, remaining: Remaining, is_stopped: Callable[[], bool]) -> None:
        self._slots = slots
        self._remaining = remaining
        self._is_stopped = is_stopped

    async def run(self, talks: Iterable[Talk], send: Send) -> None:
        """Work through `talks`; cooldown ones only while a measured one is under way."""
        queue = iter(talks)
        async with asyncio.TaskGroup() as group:
            for _ in range(self._slots):
                group.create_task(self._work(queue, send))

    async def _work(self, queue: Iterator[Talk], send: Send) -> None:
        for talk in queue:
            for ticket in talk:
                if self._is_stopped() or (ticket.phase == "cooldown" and not self._remaining.is_positive()):
                    return
                exchange = await send(ticket, None)
                if ticket.phase == "measured":
                    self._remaining.take()
                if not exchange.record.ok:
                    break  # the turns that would follow quote an answer that never came
            else:
                continue
            for unsent in talk[ticket.turn + 1 :]:
                if unsent.phase == "measured":
                    self._remaining.take()


class OpenLoop:
    """Every ticket is sent at its own time after `start_s` (monotonic), however many are under way."""

    def __init__(self, *, start_s: float, is_stopped: Callable[[], bool]) -> None:
        self._start_s = start_s
        self._is_stopped = is_stopped

    async def run(self, talks: Iterable[Talk], send: Send) -> None:
        """Send on time, then wait for all answers."""
        async with asyncio.TaskGroup() as group:
            for talk in talks:
                ticket = talk[0]
                assert ticket.intended_s is not None and len(talk) == 1
                intended = self._start_s + ticket.intended_s
                while (wait := intended - now_s()) > 0 and not self._is_stopped():
                    await asyncio.sleep(min(wait, 0.2))
                if self._is_stopped():
                    return
                group.create_task(_send(send, ticket, intended))


async def _send(send: Send, ticket: Ticket, intended_s: float) -> None:
    await send(ticket, intended_s)


def arrival_offsets(workload: Workload, conversations: Sequence[Conversation], seed: int) -> list[float | None]:
    """When each conversation is wanted, in seconds from the start of the plan; None in a closed loop."""
    load = workload.load
    count = len(conversations)
    if isinstance(load, PoissonLoad):
        gaps = np.random.default_rng([seed, 1]).exponential(1 / load.rate_per_s, size=count)
        return [float(t) for t in np.cumsum(gaps)]
    if isinstance(load, ConstantLoad):
        return [i / load.rate_per_s for i in range(count)]
    if load.kind == "replay":
        return [(c.intended_s or 0.0) / load.speed for c in conversations]
    return [None] * count
