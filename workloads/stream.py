"""Sends one request and records what came back and when.

The hot path of the client: one clock reading for each network read, one JSON parse for each event. Knows nothing of
loads. Times are this machine's monotonic clock; the session turns them into seconds since the pass's t0.
"""

import asyncio
import dataclasses
import time

import aiohttp

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
    given_up: tuple[str, str] | None = None
    """Why the client gave it up: error kind and sentence."""

    def give_up(self, kind: str, sentence: str) -> None:
        """Cancel the request; it ends as a failed record."""
        if self.given_up is None:
            self.given_up = (kind, sentence)
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


class _FailedError(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclasses.dataclass(slots=True, kw_only=True)
class Sender:
    """Sends tickets of one pass over one HTTP session."""

    http: aiohttp.ClientSession
    url: str
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
        flight = Flight(task=task, last_event_s=start)
        exchange = Exchange(self._record(ticket, start, intended_s), [], [], Answer())
        self.traffic.enter(flight, ticket.phase)
        try:
            await self._converse(ticket, flight, exchange)
        except (EventError, _FailedError) as error:
            self._fail(exchange, error.kind, str(error))
        except aiohttp.ClientPayloadError as error:
            self._fail(exchange, "broken_stream", f"the stream broke: {error}")
        except (aiohttp.ClientError, OSError) as error:
            kind = "connect" if exchange.record.headers_s is None else "broken_stream"
            self._fail(exchange, kind, f"{type(error).__name__}: {error}")
        except asyncio.CancelledError:
            if flight.given_up is None:
                raise
            task.uncancel()
            self._fail(exchange, *flight.given_up)
        finally:
            self.traffic.leave(flight, ticket.phase, ok=exchange.record.ok)
        return exchange

    async def _converse(self, ticket: Ticket, flight: Flight, exchange: Exchange) -> None:
        record, answer = exchange.record, exchange.answer
        async with self.http.post(self.url, data=ticket.body, headers=_HEADERS) as response:
            flight.last_event_s = record.headers_s = now_s()
            record.http_status = response.status
            if response.status != 200:
                text = (await response.content.read(400)).decode(errors="replace")
                raise _FailedError("http_status", f"status {response.status}: {text}")
            await self._read(response, flight, exchange)
        record.end_s = now_s()
        if answer.output_tokens == 0 or not exchange.chunk_times:
            raise _FailedError("no_tokens", "the answer ended without a token")
        if not answer.is_done and answer.finish_reason is None:
            raise _FailedError("early_end", "the stream ended without a finish reason or an end marker")
        record.ok = True
        self._complete(exchange)

    async def _read(self, response: aiohttp.ClientResponse, flight: Flight, exchange: Exchange) -> None:
        feed, read, answer = SseSplitter().feed, self.wire.read, exchange.answer
        times, tokens, traffic = exchange.chunk_times, exchange.chunk_tokens, self.traffic
        content = response.content
        while data := await content.readany():
            arrived = now_s()
            flight.last_event_s = arrived
            for payload in feed(data):
                arrival = read(payload, answer)
                if arrival is None:
                    continue
                times.append(arrived)
                tokens.append(arrival.num_tokens)
                traffic.num_tokens += arrival.num_tokens or 1
                if arrival.is_answer and exchange.record.first_answer_s is None:
                    exchange.record.first_answer_s = arrived

    def _fail(self, exchange: Exchange, kind: str, sentence: str) -> None:
        exchange.record.ok = False
        exchange.record.error_kind = kind
        exchange.record.error = sentence[:500]
        exchange.record.end_s = now_s()
        self._complete(exchange)

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


_HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}
_ANSWER_FIELDS = (
    "output_tokens", "output_tokens_seen", "input_tokens", "cached_tokens", "finish_reason", "num_verify",
    "accepted_drafts", "accept_length", "prefill_worker", "decode_worker",
)  # fmt: skip
