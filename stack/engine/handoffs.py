"""Between the scheduler and a hand-off: which request a room is, and what each side's events mean for it.

One class a role, with the same few calls, so that the worker's loop does not ask what it is. Nothing here waits.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from stack.core.errors import RequestError
from stack.core.messages import Bootstrap, Generate
from stack.disagg import Arrived, DecodeHandoff, Failed, PrefillHandoff, Released, Sent
from stack.disagg.messages import TransferStats
from stack.engine.failures import FailureLog
from stack.runner import Runner
from stack.scheduler import Request, Scheduler


class Side(Protocol):
    """One role's half of a hand-off."""

    def begin(self, message: Generate) -> None:
        """Take a request in. Raises RequestError when it cannot be taken; the other side knows then."""
        ...

    def refuse(self, bootstrap: Bootstrap | None, reason: str, status: int) -> None:
        """The request was not taken; tell the other side, which may be waiting for it."""
        ...

    def before_plan(self) -> None:
        """Act on what happened, before the next step is planned."""
        ...

    def listen(self) -> None:
        """Act on what happened, while a step runs behind which the next one is queued already."""
        ...

    def after_step(self) -> None:
        """Hand over what a step finished."""
        ...

    def ended(self, requests: Iterable[Request], reason: str, status: int) -> None:
        """Requests were ended on this side."""
        ...

    def fileno(self) -> int | None:
        """Readable when `before_plan` has something to do."""
        ...

    def counters(self) -> dict[str, float]:
        """Gauges for metrics."""
        ...

    def close(self) -> None:
        """Stop."""
        ...


class NoSide:
    """Role `single`, and decode with synthetic admission: nobody to hand over to. `admit` fills admitted memory."""

    def __init__(self, scheduler: Scheduler, admit: Callable[[Request], int] | None = None) -> None:
        self._scheduler = scheduler
        self._admit = admit

    def begin(self, message: Generate) -> None:
        """Queue it."""
        self._scheduler.add(message)

    def refuse(self, bootstrap: Bootstrap | None, reason: str, status: int) -> None:
        """Nobody to tell."""

    def before_plan(self) -> None:
        """Let admitted requests arrive at once where their memory is made up."""
        if self._admit is not None:
            for request in self._scheduler.reserve():
                self._scheduler.arrived(request, self._admit(request), request.num_cached)

    def listen(self) -> None:
        """Nobody to hear."""

    def after_step(self) -> None:
        """Nothing to hand over."""

    def ended(self, requests: Iterable[Request], reason: str, status: int) -> None:
        """Nobody to tell."""

    def fileno(self) -> int | None:
        """Nothing to wait for."""
        return None

    def counters(self) -> dict[str, float]:
        """Nothing to count."""
        return {}

    def close(self) -> None:
        """Nothing to stop."""


class PrefillSide:
    """Computes prompts, and sends pages as chunks finish."""

    def __init__(self, handoff: PrefillHandoff, scheduler: Scheduler, runner: Runner, failures: FailureLog) -> None:
        self._handoff = handoff
        self._scheduler = scheduler
        self._runner = runner
        self._failures = failures
        self._rooms: dict[int, Request] = {}

    def begin(self, message: Generate) -> None:
        """Expect the decode side and queue the prompt."""
        bootstrap = message.bootstrap
        if bootstrap is None:
            raise RequestError("a prefill instance needs bootstrap_host, bootstrap_port and bootstrap_room")
        self._handoff.expect(bootstrap.room, message.rid, message.num_prompt_tokens)
        try:
            self._rooms[bootstrap.room] = self._scheduler.add(message)
        except RequestError as error:
            self._handoff.fail(bootstrap.room, str(error), error.status)
            raise

    def refuse(self, bootstrap: Bootstrap | None, reason: str, status: int) -> None:
        """Decode fails at once; a room that is in use stays as it is."""
        if bootstrap and bootstrap.room not in self._rooms:
            self._handoff.fail(bootstrap.room, reason, status)

    def before_plan(self) -> None:
        """Finish what was sent, end what failed."""
        self.listen()

    def listen(self) -> None:
        """The same; nothing of it changes what a step under way reads."""
        for event in self._handoff.poll():
            if isinstance(event, Sent) and (request := self._rooms.pop(event.room, None)):
                request.transfer = timing_of(event.stats)
                self._scheduler.sent(request)
            elif isinstance(event, Failed) and (request := self._rooms.pop(event.room, None)):
                self._failures.note(request.rid, event.room, event.reason, event.status)
                self._scheduler.fail(request, event.reason, event.status)
                self._scheduler.let_go(request)

    def after_step(self) -> None:
        """Give finished pages to the transfer; with the last ones, state and first token."""
        done, self._scheduler.computed = self._scheduler.computed, []
        for part in done:
            request = part.request
            if request.is_finished or request.bootstrap is None:
                continue
            room, first = request.bootstrap.room, part.first_index
            self._handoff.send_pages(room, first, request.pages[first : first + part.num_pages])
            if part.is_last:
                extras = self._runner.export_extras(request.slot)
                self._handoff.send_last(
                    room, request.slot, request.output[0], request.num_prompt, request.num_cached, extras
                )

    def ended(self, requests: Iterable[Request], reason: str, status: int) -> None:
        """Tell the decode side; what is read from the memory from now on is never used."""
        for request in requests:
            if request.bootstrap and self._rooms.pop(request.bootstrap.room, None):
                self._handoff.fail(request.bootstrap.room, reason, status)
                self._scheduler.let_go(request)

    def fileno(self) -> int | None:
        """The hand-off's events."""
        return self._handoff.fileno()

    def counters(self) -> dict[str, float]:
        """The hand-off's gauges, and the queues by the names that dashboards know."""
        sending = self._scheduler.book.sending
        return self._handoff.counters() | {"prefill_inflight_queue": len(sending)}

    def close(self) -> None:
        """Wait for writes under way."""
        self._handoff.close()


class DecodeSide:
    """Reserves memory for prompts that a prefill instance computes, and lets them in when they are complete."""

    def __init__(
        self,
        handoff: DecodeHandoff,
        scheduler: Scheduler,
        runner: Runner,
        failures: FailureLog,
        *,
        polling_interval: int,
    ) -> None:
        self._handoff = handoff
        self._scheduler = scheduler
        self._runner = runner
        self._failures = failures
        self._polling_interval = polling_interval
        self._polls = 0
        self._rooms: dict[int, Request] = {}
        self._transfer_s = 0.0
        self._transfer_bytes = 0

    def begin(self, message: Generate) -> None:
        """Queue it, and let the prefill side know that it will be wanted."""
        bootstrap = message.bootstrap
        if bootstrap is None:
            raise RequestError("a decode instance needs bootstrap_host, bootstrap_port and bootstrap_room")
        self._handoff.announce(bootstrap, message.rid, message.num_prompt_tokens)
        try:
            self._rooms[bootstrap.room] = self._scheduler.add(message)
        except RequestError as error:
            self._handoff.cancel(bootstrap.room, str(error))
            raise

    def refuse(self, bootstrap: Bootstrap | None, reason: str, status: int) -> None:
        """Prefill fails at once; a room that was used stays as it is."""
        del status
        if bootstrap:
            self._handoff.refuse(bootstrap, reason)

    def before_plan(self) -> None:
        """Take in arrivals every `polling_interval` steps, and reserve for who fits now."""
        self._polls += 1
        if self._polls % self._polling_interval == 0 or not self._scheduler.num_under_way:
            self._take_events()
        self._reserve()

    def listen(self) -> None:
        """Take in arrivals: the first token of each goes out now, its row joins the next batch that is planned. Reserve
        for who fits now."""
        self._take_events()
        self._reserve()

    def after_step(self) -> None:
        """Nothing to hand over."""

    def ended(self, requests: Iterable[Request], reason: str, status: int) -> None:
        """Tell the prefill side; memory that it may write to is held until it has answered."""
        del status
        for request in requests:
            room = request.bootstrap.room if request.bootstrap else -1
            if room in self._rooms:
                self._handoff.cancel(room, reason)
                if not request.is_held:
                    del self._rooms[room]

    def fileno(self) -> int | None:
        """The hand-off's events."""
        return self._handoff.fileno()

    def counters(self) -> dict[str, float]:
        """The hand-off's gauges, and the queues by the names that dashboards know."""
        book = self._scheduler.book
        known = {
            "decode_prealloc_queue": float(len(book.waiting)),
            "decode_transfer_queue": float(len(book.receiving)),
        }
        if self._transfer_s:
            known["transfer_latency_ms"] = 1e3 * self._transfer_s
            known["transfer_speed_gb_s"] = self._transfer_bytes / self._transfer_s / 1e9
        return self._handoff.counters() | known

    def close(self) -> None:
        """Say good-bye."""
        self._handoff.close()

    def _take_events(self) -> None:
        for event in self._handoff.poll():
            self._take(event)

    def _reserve(self) -> None:
        for request in self._scheduler.reserve():
            bootstrap, lease = request.bootstrap, request.lease
            assert bootstrap and lease
            first = lease.hit_tokens // self._scheduler.memory.page_size
            end = self._scheduler.memory.pages_for(request.num_prompt)
            self._handoff.reserve(
                bootstrap, request.rid, lease.hit_tokens, lease.pages[first:end], request.slot, request.num_prompt
            )

    def _take(self, event: Arrived | Failed | Released) -> None:
        request = self._rooms.get(event.room)
        if request is None:
            return
        if isinstance(event, Failed):
            self._failures.note(request.rid, event.room, event.reason, event.status)
            self._scheduler.fail(request, event.reason, event.status)
            if not request.is_held:
                del self._rooms[event.room]
            return
        del self._rooms[event.room]
        if isinstance(event, Released):
            self._scheduler.let_go(request)
            return
        self._transfer_s, self._transfer_bytes = event.stats.tail_s, event.stats.num_bytes
        self._runner.import_extras(request.slot, event.extras)
        self._scheduler.arrived(request, event.first_token, event.cached_tokens)
        request.transfer = timing_of(event.stats) | {"transfer_arrived_at_s": request.arrived_s}


def timing_of(stats: TransferStats) -> dict[str, float]:
    """A transfer's numbers as they go into a request's timing."""
    return {
        "transfer_bytes": float(stats.num_bytes),
        "transfer_descriptors": float(stats.num_descriptors),
        "transfer_write_s": stats.write_s,
        "transfer_tail_s": stats.tail_s,
        "transfer_last_at_s": stats.last_at_s,
    }
