"""Who runs in the next step, and what becomes of everybody.

`plan` builds the next step from what the host knows, `process` takes in a step's tokens, one step late when steps
overlap. Pure Python over integers: no tensors, sockets or waiting. Memory returns only when no launched step and no
transfer can touch it, so a page never changes hands under a reader or a writer.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from stack.config import EngineConfig
from stack.core.clock import Clock
from stack.core.errors import RequestError
from stack.core.messages import Generate, Tokens
from stack.core.plan import StepPlan, StepResult
from stack.scheduler.book import Book, Totals
from stack.scheduler.decode import DecodePlanner
from stack.scheduler.memory import Memory
from stack.scheduler.prefill import PrefillPlanner
from stack.scheduler.receive import Receiver
from stack.scheduler.request import Phase, Request


@dataclass(frozen=True, slots=True)
class Limits:
    """What one instance can hold."""

    max_context: int
    """Most tokens of a request, prompt and output."""
    max_running: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Computed:
    """Prefill instance: a step finished pages `first_index ..` of a request that a decode instance waits for."""

    request: Request
    first_index: int
    num_pages: int
    is_last: bool


@dataclass(slots=True)
class _UnderWay:
    plan: StepPlan
    batch: list[Request]
    moved: list[Request]
    """Requests outside `batch` whose memory the step touches: swapped out."""


class Scheduler:
    """The requests of one instance, over integers."""

    def __init__(self, config: EngineConfig, limits: Limits, memory: Memory, clock: Clock) -> None:
        self.config = config
        self.limits = limits
        self.memory = memory
        self.book = Book(clock)
        self.computed: list[Computed] = []
        """What the last `process` calls finished for transfers; the caller empties it."""
        self._clock = clock
        self.width = config.speculation.width
        self._keeps_output = config.cache.prefix == "kv_radix"
        self._prefill = PrefillPlanner(
            self.book,
            memory,
            config.scheduler,
            max_running=limits.max_running,
            sends=config.role == "prefill",
        )
        self._decode = DecodePlanner(
            self.book,
            memory,
            width=self.width,
            max_running=limits.max_running,
            yield_prefill=self._prefill.give_way,
        )
        self._receiver = Receiver(
            self.book,
            memory,
            most_holding=limits.max_running + config.scheduler.extra_inflight,
            reserve=config.scheduler.reserve_output_tokens,
        )
        self._under_way: deque[_UnderWay] = deque()
        self._drops: list[int] = []
        self._step = 0
        self._last_kind = "decode"

    # -- requests ------------------------------------------------------------------------------------------------
    def add(self, message: Generate) -> Request:
        """Queue a request. Raises RequestError when it can never run or the queue is full."""
        sampling = message.sampling
        sampling.check(self.limits.vocab_size)
        self._check_size(message)
        prompt = self._checked_tokens(message)
        if message.rid in self.book.by_rid:
            raise RequestError(f"a request with id {message.rid!r} is already running; use another id")
        if len(self.book.waiting) >= self.config.scheduler.max_queued:
            self.book.totals.refused += 1
            raise RequestError("the queue is full; retry later", status=503)
        now_s = self._clock.now_s()
        eos = () if sampling.ignore_eos else self.limits.eos_token_ids
        request = Request(
            rid=message.rid,
            prompt=prompt,
            sampling=sampling,
            arrival_s=now_s,
            deadline_s=now_s + self.config.scheduler.request_deadline_s,
            bootstrap=message.bootstrap,
            keys=self.memory.cache.keys(message.prompt),
            end_tokens=frozenset((*eos, *sampling.stop_token_ids)),
        )
        self.book.by_rid[request.rid] = request
        self.book.waiting.append(request)
        self.book.totals.requests += 1
        self.book.totals.prompt_tokens += request.num_prompt
        return request

    def abort(self, rid: str, error: str | None = None, status: int = 499) -> list[Request]:
        """End a request (all for an empty `rid`) wherever it is; those ended, whose transfers the caller cancels."""
        found = list(self.book.by_rid.values()) if not rid else [r for r in (self.book.by_rid.get(rid),) if r]
        for request in found:
            self.book.say_last(request, [], "abort", error=error, status=status)
        self._settle()
        return found

    def expire(self) -> list[Request]:
        """End what is past its deadline."""
        now_s = self._clock.now_s()
        limit_s = self.config.scheduler.request_deadline_s
        late = [request for request in self.book.by_rid.values() if request.deadline_s < now_s]
        for request in late:
            self.abort(request.rid, f"the request did not finish within {limit_s:g} s", 504)
        return late

    def take_messages(self) -> list[Tokens]:
        """What clients are to be told since the last call."""
        messages, self.book.messages = self.book.messages, []
        return messages

    def forget(self) -> None:
        """Drop the caches and the counts of an idle scheduler, as if nothing had ever run."""
        assert self.book.is_empty
        self.memory.flush()
        self.book.totals = Totals()

    # -- hand-offs -----------------------------------------------------------------------------------------------
    def reserve(self) -> list[Request]:
        """Decode instance: requests that just got memory for the cache that another instance computes."""
        return self._receiver.reserve()

    def arrived(self, request: Request, first_token: int, cached_tokens: int) -> None:
        """Decode instance: pages, slot and first token are here. `cached_tokens` were not computed on the other
        side."""
        request.num_cached = cached_tokens
        self._receiver.arrived(request)
        self._take_decoded(request, [first_token], is_first=True)
        self._settle()

    def sent(self, request: Request) -> None:
        """Prefill instance: the other side has everything."""
        request.is_held = False
        if not request.is_finished:
            self.book.say_last(request, request.output, "length")
        self._settle()

    def fail(self, request: Request, error: str, status: int) -> None:
        """A transfer failed. The request ends; its memory waits for `let_go`."""
        if not request.is_finished:
            self.book.say_last(request, [], "abort", error=error, status=status)
        self._settle()

    def let_go(self, request: Request) -> None:
        """No transfer touches the request's memory any more."""
        request.is_held = False
        self._settle()

    # -- steps ---------------------------------------------------------------------------------------------------
    @property
    def num_under_way(self) -> int:
        """Steps planned and not processed."""
        return len(self._under_way)

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can run before something else happens.

        Somebody may give way without a step under way; what that frees is there for a second look.
        """
        for _ in range(2):
            self._settle()
            plan = StepPlan(step=self._step, kind="memory", drops=self._drops)
            self.memory.take_repointed(plan.entries)
            batch = self._fill(plan)
            moved = self._moved(plan, batch)
            if batch or moved or plan.drops or plan.entries.pages:
                self._drops = []
                self._step += 1
                self._under_way.append(_UnderWay(plan, batch, moved))
                return plan
        return None

    def process(self, result: StepResult) -> None:
        """Take in the oldest step under way."""
        done = self._under_way.popleft()
        assert done.plan.step == result.step, f"step {result.step} came back for step {done.plan.step}"
        for request in done.moved:
            request.num_inflight -= 1
        if done.plan.kind == "prefill":
            self._process_prefill(done, result)
        else:
            self._process_decode(done, result)
        self._settle()

    def _fill(self, plan: StepPlan) -> list[Request]:
        role = self.config.role
        order = ("prefill", "decode") if self._last_kind == "decode" else ("decode", "prefill")
        for kind in order:
            if kind == "prefill" and role != "decode":
                batch = self._prefill.fill(plan)
            elif kind == "decode":
                batch = self._decode.fill(plan)
            else:
                continue
            if batch:
                self._last_kind = kind
                plan.kind = "prefill" if kind == "prefill" else "decode"
                return batch
        return []

    def _moved(self, plan: StepPlan, batch: list[Request]) -> list[Request]:
        moved: list[Request] = []
        if plan.swap_outs:
            tickets = {swap.ticket for swap in plan.swap_outs}
            moved += [request for request in self.book.swapped if request.ticket in tickets]
        if plan.inits:
            slots = {init.slot for init in plan.inits}
            in_batch = set(map(id, batch))
            placed = (*self.book.running, *self.book.prefilling, *self.book.sending)
            moved += [request for request in placed if request.slot in slots and id(request) not in in_batch]
        for request in moved:
            request.num_inflight += 1
        return moved

    def _process_decode(self, done: _UnderWay, result: StepResult) -> None:
        say, finished = self.book.say, Phase.FINISHED
        num_single = 0
        for request, tokens in zip(done.batch, result.tokens, strict=True):
            request.num_inflight -= 1
            if request.phase is finished:
                continue
            output = request.output
            if self.width == 1 and len(output) + 1 < request.limit and tokens[0] not in request.end_tokens:
                output.append(tokens[0])
                say(request, tokens)
                num_single += 1
            else:
                self._take_decoded(request, tokens)
        self.book.totals.generated_tokens += num_single

    def _process_prefill(self, done: _UnderWay, result: StepResult) -> None:
        now_s = self._clock.now_s()
        for row, request, tokens in zip(done.plan.prefill, done.batch, result.tokens, strict=True):
            request.num_inflight -= 1
            if row.ends_prompt:
                request.prefilled_s = now_s
            if request.phase is Phase.FINISHED:
                continue
            if request.bootstrap is not None and self.config.role == "prefill":
                self._take_sent(row.start, row.end, request, tokens)
            elif row.ends_prompt:
                self._take_decoded(request, tokens, is_first=True)

    def _take_sent(self, start: int, end: int, request: Request, tokens: list[int]) -> None:
        size = self.memory.page_size
        is_last = bool(tokens)
        first = 0 if start == request.num_cached else start // size
        count = self.memory.pages_for(end) - first
        request.output.extend(tokens)
        self.computed.append(Computed(request, first, count, is_last))

    def _take_decoded(self, request: Request, tokens: list[int], *, is_first: bool = False) -> None:
        output, sampling, totals = request.output, request.sampling, self.book.totals
        if not is_first and self.width > 1:
            request.num_verify += 1
            request.num_accepted_drafts += max(len(tokens) - 1, 0)
            totals.verifies += 1
            totals.accepted_drafts += max(len(tokens) - 1, 0)
        new = tokens[: request.limit - len(output)]
        for count, token in enumerate(new, start=1):
            output.append(token)
            if token in request.end_tokens and len(output) >= sampling.min_new_tokens:
                totals.generated_tokens += count
                self.book.say_last(request, new[:count], "stop", matched=token)
                return
        totals.generated_tokens += len(new)
        if len(output) >= request.limit:
            self.book.say_last(request, new, "length")
        elif new:
            self.book.say(request, new)

    # -- memory that may return ----------------------------------------------------------------------------------
    def _settle(self) -> None:
        """Take back memory that nothing under way can touch any more."""
        book, memory = self.book, self.memory
        if book.leaving:
            still: list[Request] = []
            for request in book.leaving:
                if request.num_inflight or request.is_held:
                    still.append(request)
                else:
                    self._give_back(request)
            book.leaving = still
        for request in book.swapped:
            if request.slot and not request.num_inflight:
                memory.vacate(request)
        for request in [r for r in book.yielding if not r.num_inflight]:
            book.yielding.remove(request)
            self._queue_again(request)

    def _give_back(self, request: Request) -> None:
        if request.ticket:
            self._drops.append(request.ticket)
        elif request.output and self._keeps_output:
            self.memory.keep_finished(request)
        self.memory.release(request)

    def _queue_again(self, request: Request) -> None:
        self.memory.release(request)
        request.num_computed = 0
        request.phase = Phase.QUEUED
        self.book.waiting.appendleft(request)

    def _check_size(self, message: Generate) -> None:
        num_prompt = message.num_prompt_tokens
        limit = 1 if self.config.role == "prefill" else message.sampling.max_new_tokens
        if not num_prompt:
            raise RequestError("the prompt is empty; send at least one token")
        if num_prompt + limit > self.limits.max_context:
            raise RequestError(
                f"the prompt has {num_prompt} tokens and max_new_tokens is {limit}; "
                f"together they must not exceed {self.limits.max_context}"
            )
        if self.memory.pages_for(num_prompt + limit + self.width) > self.memory.cache.pages.total:
            most = self.memory.most_tokens - self.width
            raise RequestError(f"the request needs {num_prompt + limit} tokens of cache; the instance has {most}")

    def _checked_tokens(self, message: Generate) -> np.ndarray:
        """The prompt as one array over the message's bytes: a long prompt must not hold up the running ones."""
        tokens = np.frombuffer(message.prompt, dtype=np.uint32)  # unsigned: a negative id is larger than any other
        if int(tokens.max()) >= self.limits.vocab_size:
            raise RequestError(f"token ids must lie between 0 and {self.limits.vocab_size - 1}")
        return tokens
