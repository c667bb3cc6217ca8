"""One process's share of a pass: build the tickets, then drive them. The whole client when there is one process.

Prompts and bodies exist before t0. Conversations are dealt out by index, so any number of processes sends the same
traffic.
"""

import asyncio
import contextlib
import dataclasses
import gc
import itertools
import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from workloads.connection import Connections
from workloads.load import ClosedLoop, LocalRemaining, OpenLoop, Remaining, Talk, arrival_offsets
from workloads.records import ChunkRecord, Phase, RequestRecord, schema_of
from workloads.sources import source_for
from workloads.spec import ClosedLoad, Workload
from workloads.stream import Exchange, Sender, Ticket, Traffic, now_s
from workloads.traffic import Conversation, Prompt, Source
from workloads.watch import LoopLag, Watchdog
from workloads.wire import Wire, wire_for

_LOOK_S = 0.05
"""Between two looks whether anything that is measured is left."""


@dataclasses.dataclass(slots=True)
class ShareResult:
    """What a share of a pass left behind; times absolute (monotonic)."""

    requests: list[RequestRecord]
    chunks: pa.Table
    lags: list[tuple[float, float]]
    """Loop lag: when (monotonic), milliseconds."""
    peak_in_flight: int
    peak_in_warmup: int
    stopped: tuple[str, str] | None
    cpu_s: float
    """Processor time of this process while it drove the load."""
    planned_t0_s: float | None
    """Open loop: when the first measured request was wanted."""


class Share:
    """Process `index` of `count`."""

    def __init__(
        self, workload: Workload, url: str, *, index: int = 0, count: int = 1, remaining: Remaining | None = None
    ) -> None:
        self.workload = workload
        self.traffic = Traffic()
        self._url = url.rstrip("/")
        self._index = index
        self._count = count
        self._remaining = remaining
        self._wire = wire_for(workload)
        self._source = source_for(workload)
        self._talks: list[Talk] = []
        self._pass_index = 0
        self._watchdog: Watchdog | None = None
        self._said: dict[int, np.ndarray] = {}

    @property
    def wire(self) -> Wire:
        """The endpoint's wire."""
        return self._wire

    def build(self, pass_index: int, phases: tuple[Phase, ...] = ("warmup", "measured", "cooldown")) -> float:
        """Make this share's tickets of a pass; returns the seconds it took. Raises SpecError."""
        started = time.monotonic()
        self._pass_index = pass_index
        self._talks = [
            talk
            for i, talk in enumerate(tickets_of(self.workload, self._source, self._wire, pass_index, phases))
            if i % self._count == self._index
        ]
        gc.collect()
        return time.monotonic() - started

    @property
    def talks(self) -> list[Talk]:
        """The tickets built last."""
        return self._talks

    def stop(self, kind: str, sentence: str) -> None:
        """Stop the running pass; what has ended is kept."""
        if self._watchdog is not None:
            self._watchdog.stop(kind, sentence)

    async def run(self, start_s: float) -> ShareResult:
        """Drive the tickets built last, from `start_s` (monotonic) on."""
        self.traffic = Traffic()
        limits = self.workload.timeouts
        watchdog = self._watchdog = Watchdog(self.traffic, limits.stall_s, limits.deadline_s)
        lag, exchanges = LoopLag(), list[Exchange]()
        gc.freeze()
        gc.disable()  # a collection would stop the clock of every stream; what a pass leaves is small
        with contextlib.closing(Connections(self._url + self._wire.path)) as connections:
            sender = Sender(
                connections=connections,
                wire=self._wire,
                traffic=self.traffic,
                pass_index=self._pass_index,
                process=self._index,
                keep_text=self.workload.keep_text,
            )
            await asyncio.sleep(max(0.0, start_s - now_s()))
            cpu_before = time.process_time()
            tasks = [asyncio.create_task(lag.run()), asyncio.create_task(watchdog.run())]
            try:
                await self._drive(sender, exchanges, start_s, lambda: watchdog.stopped is not None)
            finally:
                for task in tasks:
                    task.cancel()
                gc.enable()
                gc.unfreeze()
        return self._result(exchanges, lag, watchdog, start_s, time.process_time() - cpu_before)

    async def _drive(
        self, sender: Sender, exchanges: list[Exchange], start_s: float, is_stopped: Callable[[], bool]
    ) -> None:
        async def send(ticket: Ticket, intended_s: float | None) -> Exchange:
            exchange = await sender.send(self._quoting(ticket), intended_s=intended_s)
            exchanges.append(exchange)
            if self._quotes_answers:
                self._remember(ticket, exchange)
            return exchange

        load = self.workload.load
        if isinstance(load, ClosedLoad):
            measured = sum(t.phase == "measured" for talk in self._talks for t in talk)
            slots = load.concurrency // self._count + (self._index < load.concurrency % self._count)
            remaining = self._remaining or LocalRemaining(measured)
            is_cut = load.cut_cooldown and self._pass_index == self.workload.passes - 1
            cutter = asyncio.create_task(self._cut_cooldown(remaining)) if is_cut else None
            try:
                await ClosedLoop(slots=slots, remaining=remaining, is_stopped=is_stopped).run(self._talks, send)
            finally:
                if cutter:
                    cutter.cancel()
        else:
            await OpenLoop(start_s=start_s, is_stopped=is_stopped).run(self._talks, send)

    async def _cut_cooldown(self, remaining: Remaining) -> None:
        """End what only kept the load up, once nothing that is measured is left in the session. Before another pass
        every answer is read to its end, so that the servers have nothing to do when it is prepared."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if not remaining.is_positive():
                for flight in list(self.traffic.by_id.values()):
                    flight.cut()

    def _result(
        self, exchanges: list[Exchange], lag: LoopLag, watchdog: Watchdog, start_s: float, cpu_s: float
    ) -> ShareResult:
        intended = [t.intended_s for talk in self._talks for t in talk if t.phase == "measured"]
        first = min((t for t in intended if t is not None), default=None)
        return ShareResult(
            requests=[e.record for e in exchanges],
            chunks=chunk_table(exchanges),
            lags=lag.samples,
            peak_in_flight=self.traffic.peak_in_flight,
            peak_in_warmup=self.traffic.peak_in_warmup,
            stopped=watchdog.stopped,
            cpu_s=cpu_s,
            planned_t0_s=None if first is None else start_s + first,
        )

    @property
    def _quotes_answers(self) -> bool:
        source = self.workload.source
        return source.kind == "chat" and source.reply == "actual"

    def _quoting(self, ticket: Ticket) -> Ticket:
        """The ticket with what was said before it, where the prompt asks for that."""
        if not ticket.prompt.quotes_answer:
            return ticket
        ids = np.concatenate([self._said[ticket.conversation], ticket.prompt.token_ids])
        prompt = dataclasses.replace(ticket.prompt, token_ids=ids, input_tokens=len(ids))
        return dataclasses.replace(ticket, prompt=prompt, body=self._wire.body(prompt, ticket.rid))

    def _remember(self, ticket: Ticket, exchange: Exchange) -> None:
        prompt = self._quoting(ticket).prompt
        answer = np.asarray(exchange.answer.output_ids, dtype=np.int32)
        assert prompt.token_ids is not None
        self._said[ticket.conversation] = np.concatenate([prompt.token_ids, answer])


def chunk_table(exchanges: Sequence[Exchange]) -> pa.Table:
    """The chunks of all exchanges as rows of `ChunkRecord`; made from columns, since there may be millions."""
    counts = [len(e.chunk_times) for e in exchanges]
    columns = {
        "pass_index": np.repeat([e.record.pass_index for e in exchanges], counts),
        "phase": np.repeat(np.array([e.record.phase for e in exchanges], dtype=object), counts),
        "request_index": np.repeat([e.record.request_index for e in exchanges], counts),
        "chunk_index": np.concatenate([np.arange(n) for n in counts]) if counts else np.arange(0),
        "t_s": np.fromiter(itertools.chain.from_iterable(e.chunk_times for e in exchanges), dtype=float),
        "num_tokens": list(itertools.chain.from_iterable(e.chunk_tokens for e in exchanges)),
    }
    schema = schema_of(ChunkRecord)
    arrays = [pa.array(columns[field.name], type=field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def tickets_of(
    workload: Workload, source: Source, wire: Wire, pass_index: int, phases: tuple[Phase, ...]
) -> list[Talk]:
    """All conversations of a pass as tickets, in the order in which they are sent."""
    plan = [(phase, count) for phase, count in phase_counts(workload) if phase in phases]
    seed, count = workload.traffic_seed(pass_index), sum(n for _, n in plan)
    first = max(0, pass_index) * count if workload.continued else 0
    conversations: list[Conversation] = source.conversations(seed, count, first=first)
    offsets = arrival_offsets(workload, conversations, seed)
    phase_of = [phase for phase, count in plan for _ in range(count)]
    index = itertools.count()
    talks: list[Talk] = []
    for number, (conversation, phase, offset) in enumerate(zip(conversations, phase_of, offsets, strict=True)):
        talk = []
        for turn, prompt in enumerate(conversation.turns):
            place = next(index)
            rid = f"{workload.identity.row}-s{workload.identity.session}-p{pass_index}-{place}"
            prompt = _as_sent(workload, prompt)
            body = b"" if prompt.quotes_answer else wire.body(prompt, rid)
            talk.append(
                Ticket(phase=phase, index=place, conversation=number, turn=turn, rid=rid, prompt=prompt, body=body,
                       intended_s=offset)
            )  # fmt: skip
        talks.append(talk)
    return talks


def phase_counts(workload: Workload) -> list[tuple[Phase, int]]:
    """Conversations of each phase of a pass, in order."""
    turns = workload.source.turns if workload.source.kind == "chat" else 1
    load = workload.load
    has_warmup = workload.num_warmup > 0 and (not isinstance(load, ClosedLoad) or load.handover)
    cooldown = 2 * load.concurrency if isinstance(load, ClosedLoad) and load.keep_full else 0
    return [
        ("warmup", math.ceil(workload.num_warmup / turns) if has_warmup else 0),
        ("measured", math.ceil(workload.num_measured / turns)),
        ("cooldown", math.ceil(cooldown / turns)),
    ]


def _as_sent(workload: Workload, prompt: Prompt) -> Prompt:
    """Over the chat endpoint text is sent, whose length only the server knows."""
    if workload.endpoint != "chat":
        return prompt
    return dataclasses.replace(prompt, token_ids=None, input_tokens=None, shared_tokens=None)
