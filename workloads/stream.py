"""Sends one request and records what came back and when.

The hot path of the client: one clock reading for each network read, one JSON parse for each event, and no task is woken
before the answer has ended. Knows nothing of loads. Times are this machine's monotonic clock; the session turns them
into seconds since the pass's t0.
"""

import asyncio
import dataclasses
import time

from workloads.connection import Connections
from workloads.records import Phase, RequestRecord
from workloads.sse import SseSplitter
from workloads.traffic import Prompt
from workloads.turnstile import Turnstile
from workloads.wire import Answer, EventError, Wire

now_s = time.monotonic


@dataclasses.dataclass(slots=True, kw_only=True)
class Flight:
    """A request on its way, as the watchdog and the progress line see it."""

    task: asyncio.Task[object]
    last_event_s: float
    phase: Phase = "measured"
    exchange: "Exchange | None" = None
    given_up: tuple[str, str] | None = None
    """Why the client gave it up: error kind and sentence."""
    is_cut: bool = False
    """Whether the client ended it because nothing that is measured was left."""

    def give_up(self, kind: str, sentence: str) -> None:
        """Cancel the request; it ends as a failed record."""
        if self.given_up is None:
            self.given_up = (kind, sentence)
            if not self.is_cut:
                self.task.cancel()

    def cut(self) -> None:
        """Cancel a request of the cooldown, whose work is done once nothing that is measured is left.

        Where its tokens so far are not known they could not be counted, and the answer is read to its end.
        """
        known = self.exchange is not None and self.exchange.is_counted
        if self.phase == "cooldown" and known and self.given_up is None and not self.is_cut:
            self.is_cut = True
            self.task.cancel()


@dataclasses.dataclass(slots=True)
class Traffic:
    """Counts of this process, for the watchdog, the progress line and the checks: `num_done` of the measured requests,
    the others over all phases."""

    by_id: dict[int, Flight] = dataclasses.field(default_factory=dict)
    peak_in_flight: int = 0
    peak_in_warmup: int = 0
    num_done: int = 0
    num_failed: int = 0
    num_tokens: int = 0

    def enter(self, flight: Flight, phase: Phase) -> None:
        """A request is being sent."""
        self.by_id[id(flight)] = flight
        self.peak_in_flight = max(self.peak_in_flight, len(self.by_id))
        if phase == "warmup":
            self.peak_in_warmup = max(self.peak_in_warmup, len(self.by_id))

    def leave(self, flight: Flight, phase: Phase, *, ok: bool) -> None:
        """It has ended."""
        del self.by_id[id(flight)]
        self.num_done += phase == "measured"
        self.num_failed += not ok


@dataclasses.dataclass(slots=True, kw_only=True)
class Ticket:
    """A request to send: its prompt, its place in the pass, and its body as bytes."""

    phase: Phase
    index: int
    conversation: int
    turn: int
    rid: str
    prompt: Prompt
    body: bytes
    intended_s: float | None = None
    """Offset from the start of the load plan in seconds; None in a closed loop."""


@dataclasses.dataclass(slots=True)
class Exchange:
    """What one request left behind; times absolute."""

    record: RequestRecord
    chunk_times: list[float]
    chunk_tokens: list[int | None]
    answer: Answer

    @property
    def is_counted(self) -> bool:
        """Whether all tokens that came so far, and those of the prompt, are known."""
        if not self.chunk_tokens:
            return True
        return None not in (*self.chunk_tokens, self.answer.input_tokens, self.answer.cached_tokens)


class _FailedError(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Reading:
    """Takes one answer while it arrives."""

    __slots__ = ("_answer", "_exchange", "_feed", "_flight", "_read", "_refusal", "_times", "_tokens", "_traffic")

    def __init__(self, wire: Wire, traffic: Traffic, flight: Flight, exchange: Exchange) -> None:
        self._read = wire.read
        self._feed = SseSplitter().feed
        self._traffic = traffic
        self._flight = flight
        self._exchange = exchange
        self._answer = exchange.answer
        self._times = exchange.chunk_times
        self._tokens = exchange.chunk_tokens
        self._refusal = b""

    def head(self, status: int, arrived_s: float) -> None:
        """The status says whether there are events to come."""
        self._flight.last_event_s = self._exchange.record.headers_s = arrived_s
        self._exchange.record.http_status = status

    def body(self, data: bytes, arrived_s: float) -> None:
        """Take the events that are whole now. Raises EventError, and _FailedError for an answer that is a refusal."""
        self._flight.last_event_s = arrived_s
        if self._exchange.record.http_status != 200:
            self._refusal += data
            if len(self._refusal) >= _REFUSAL_BYTES:
                raise self.refusal()
            return
        for payload in self._feed(data):
            arrival = self._read(payload, self._answer)
            if arrival is None:
                continue
            self._times.append(arrived_s)
            self._tokens.append(arrival.num_tokens)
            self._traffic.num_tokens += arrival.num_tokens or 1
            if arrival.is_answer and self._exchange.record.first_answer_s is None:
                self._exchange.record.first_answer_s = arrived_s

    def refusal(self) -> _FailedError:
        """The error of an answer whose status is not 200."""
        text = self._refusal[:_REFUSAL_BYTES].decode(errors="replace")
        return _FailedError("http_status", f"status {self._exchange.record.http_status}: {text}")


@dataclasses.dataclass(slots=True, kw_only=True)
class Sender:
    """Sends tickets of one pass over the connections to one URL."""

    connections: Connections
    wire: Wire
    traffic: Traffic
    pass_index: int
    process: int
    keep_text: bool
    turnstile: Turnstile = dataclasses.field(default_factory=Turnstile)

    async def send(self, ticket: Ticket, *, intended_s: float | None = None) -> Exchange:
        """Send and read to the end. Never raises for what the server does; a failure is a record."""
        task = asyncio.current_task()
        assert task is not None
        await self.turnstile.turn()
        start = now_s()
        exchange = Exchange(self._record(ticket, start, intended_s), [], [], Answer())
        flight = Flight(task=task, last_event_s=start, phase=ticket.phase, exchange=exchange)
        self.traffic.enter(flight, ticket.phase)
        try:
            await self._converse(ticket, flight, exchange)
        except (EventError, _FailedError) as error:
            self._fail(exchange, error.kind, str(error))
        except OSError as error:
            kind = "connect" if exchange.record.headers_s is None else "broken_stream"
            self._fail(exchange, kind, f"{type(error).__name__}: {error}")
        except asyncio.CancelledError:
            if flight.given_up is None and not flight.is_cut:
                raise
            task.uncancel()
            if flight.is_cut:
                self._cut(exchange)
            else:
                assert flight.given_up is not None
                self._fail(exchange, *flight.given_up)
        finally:
            self.traffic.leave(flight, ticket.phase, ok=exchange.record.ok)
        return exchange

    async def _converse(self, ticket: Ticket, flight: Flight, exchange: Exchange) -> None:
        record, answer = exchange.record, exchange.answer
        reading = _Reading(self.wire, self.traffic, flight, exchange)
        try:
            await self.connections.post(ticket.body, reading)
        except OSError:
            if record.http_status in (None, 200):
                raise
        if record.http_status != 200:
            raise reading.refusal()
        record.end_s = now_s()
        if answer.output_tokens == 0 or not exchange.chunk_times:
            raise _FailedError("no_tokens", "the answer ended without a token")
        if not answer.is_done and answer.finish_reason is None:
            raise _FailedError("early_end", "the stream ended without a finish reason or an end marker")
        record.ok = True
        self._complete(exchange)

    def _fail(self, exchange: Exchange, kind: str, sentence: str) -> None:
        exchange.record.ok = False
        exchange.record.error_kind = kind
        exchange.record.error = sentence[:500]
        exchange.record.end_s = now_s()
        self._complete(exchange)

    def _cut(self, exchange: Exchange) -> None:
        record = exchange.record
        record.ok, record.end_s = True, now_s()
        self._complete(exchange)
        record.finish_reason = "cut"
        record.output_tokens = sum(count or 0 for count in exchange.chunk_tokens)
        record.output_tokens_seen = None

    def _complete(self, exchange: Exchange) -> None:
        record, answer = exchange.record, exchange.answer
        if exchange.chunk_times:
            record.first_token_s, record.last_token_s = exchange.chunk_times[0], exchange.chunk_times[-1]
            record.first_chunk_tokens = exchange.chunk_tokens[0]
        record.num_chunks = len(exchange.chunk_times)
        for name in _ANSWER_FIELDS:
            setattr(record, name, getattr(answer, name))
        if self.keep_text:
            record.output_text = answer.text

    def _record(self, ticket: Ticket, start: float, intended_s: float | None) -> RequestRecord:
        prompt = ticket.prompt
        return RequestRecord(
            pass_index=self.pass_index, phase=ticket.phase, request_index=ticket.index, rid=ticket.rid,
            process=self.process, group=prompt.group, conversation=ticket.conversation, turn=ticket.turn,
            intended_start_s=start if intended_s is None else intended_s, start_s=start, headers_s=None,
            first_token_s=None, first_answer_s=None, last_token_s=None, end_s=start,
            input_tokens_requested=prompt.input_tokens, input_tokens=None, cached_tokens=None,
            shared_tokens=prompt.shared_tokens, output_tokens_requested=prompt.output_tokens, output_tokens=None,
            output_tokens_seen=None, num_chunks=0, first_chunk_tokens=None, finish_reason=None, http_status=None,
            ok=False, error_kind=None, error=None, num_verify=None, accepted_drafts=None, accept_length=None,
            prefill_worker=None, decode_worker=None, output_text=None,
        )  # fmt: skip


_REFUSAL_BYTES = 400
"""How much of an answer that is no success is kept."""
_ANSWER_FIELDS = (
    "output_tokens", "output_tokens_seen", "input_tokens", "cached_tokens", "finish_reason", "num_verify",
    "accepted_drafts", "accept_length", "prefill_worker", "decode_worker", "transfer_tail_s", "handoff_s",
)  # fmt: skip
