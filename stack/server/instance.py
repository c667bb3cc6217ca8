"""One serving instance as the API sees it: what it is, whether it serves, and every generation under way.

Knows the worker as a link that takes and gives messages. Invariants: a generation is in `generations` exactly while it
has not ended; the worker is told of every generation that ends on this side.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Protocol

from stack.config import EngineConfig
from stack.core import messages
from stack.core.errors import RequestError
from stack.core.geometry import ModelGeometry
from stack.core.tokens import pack_tokens
from stack.server.chat import ChatTemplate
from stack.server.detokenizer import TextStream
from stack.server.generation import Finish, Generation, Group
from stack.server.intake import Limits, Prompt, Task, check_token_ids, sampling_params
from stack.server.metrics import Metrics
from stack.server.tokenizer import TokenText

Phase = Literal["loading", "serving", "draining", "failed"]

_LONG_TEXT = 2000  # characters; a shorter text is tokenised where it is, a longer one on a thread


class WorkerLink(Protocol):
    """What the instance needs of `stack.server.link.Link`."""

    def send(self, message: messages.ToWorker) -> None:
        """Queue a message."""

    async def call(self, make: Callable[[int], messages.ToWorker], timeout_s: float | None) -> Any:
        """Send a message that has an answer, and return it."""

    def receive(self) -> None:
        """Handle what has arrived."""

    def end_calls(self, reason: str) -> None:
        """Fail the calls that wait, and every later one: the worker answers no more."""


class Instance:
    """State of the HTTP process. `link` is set before the first request is let in."""

    link: WorkerLink

    def __init__(self, config: EngineConfig) -> None:
        folder = Path(config.model.path)
        self.config = config
        self.geometry = ModelGeometry.from_file(folder)
        self.tokenizer = TokenText.from_folder(folder)
        self.chat = ChatTemplate.from_folder(folder)
        self.metrics = Metrics(config.model.served_name)
        self.phase: Phase = "loading"
        self.ready: messages.Ready | None = None
        self.failure = ""
        """Why the phase is `failed`."""
        self.generations: dict[str, Generation] = {}
        self.started_s = time.time()
        self.profile_path = ""
        """The last trace that was written after its request had been answered."""
        self.drain_asked = asyncio.Event()
        self.has_failed = asyncio.Event()
        self._became_ready = asyncio.Event()
        self._became_idle = asyncio.Event()
        self._num_rids = 0
        self._alive_s = 0.0
        self._turn_s = 0.0
        self._threads = ThreadPoolExecutor(config.server.tokenizer_workers, thread_name_prefix="tokenizer")

    @property
    def limits(self) -> Limits:
        """What a request may ask for."""
        role, ready = self.config.role, self.ready
        assert ready is not None
        return Limits(
            role=role,
            needs_meeting=role == "prefill" or (role == "decode" and not self.config.synthetic_admission),
            vocab_size=self.geometry.vocab_size,
            max_context=ready.max_context,
            max_total_tokens=ready.max_total_tokens,
        )

    def check_serving(self) -> None:
        """Raise RequestError with 503 unless requests are taken."""
        reasons = {
            "loading": "the model is still loading; try again when GET /health answers 200",
            "draining": "this instance is shutting down and takes no new requests",
            "failed": f"this instance has failed: {self.failure}",
        }
        reason = reasons.get(self.phase) or self._hang()
        if reason:
            raise RequestError(reason, status=503)

    def check_open(self) -> None:
        """`check_serving` for a prompt. A draining half of a pair lets its worker refuse it and tell the other half."""
        has_other_half = self.ready is not None and self.limits.needs_meeting
        if not (self.phase == "draining" and has_other_half):
            self.check_serving()

    async def submit(self, tasks: Sequence[Task]) -> Group:
        """Tokenise, check and start all tasks, or none. Raises RequestError; the other halves then know of it."""
        try:
            starts = await self._prepared(tasks)
        except RequestError as error:
            for task in tasks:
                if task.bootstrap is not None:
                    refused = messages.Refuse(bootstrap=task.bootstrap, reason=str(error), status=error.status)
                    self.link.send(refused)
            raise
        group = Group([generation for generation, _ in starts])
        for generation, message in starts:
            self.generations[generation.rid] = generation
            self.link.send(message)
        return group

    async def run_in_thread(self, work: Callable[[], Any]) -> Any:
        """Run `work` beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def handle(self, message: messages.FromWorker) -> None:
        """Take a message of the worker that answers no call."""
        if isinstance(message, messages.Tokens):
            self._take(message)
        elif isinstance(message, messages.Alive):
            self._alive_s, self._turn_s = time.monotonic(), message.turn_s
        elif isinstance(message, messages.Ready):
            self.ready = message
            self._alive_s, self._turn_s = time.monotonic(), 0.0
            if self.phase == "loading":
                self.phase = "serving"
            self._became_ready.set()
        elif isinstance(message, messages.Profiled):
            self.profile_path = message.path
        elif isinstance(message, messages.Fatal):
            self.fail(message.message)

    async def until_ready(self) -> None:
        """Return when the worker has said that it can serve."""
        await self._became_ready.wait()

    def abort(self, generations: Sequence[Generation], finish: Finish) -> None:
        """End generations on this side and tell the worker; those that have ended stay as they are."""
        for generation in generations:
            if generation.finish is None:
                generation.end(finish)
                self.link.send(messages.Abort(rid=generation.rid))
                self._forget(generation)

    def abort_all(self, reason: str) -> None:
        """End everything with an error."""
        self.abort(list(self.generations.values()), Finish("abort", None, reason, 503))

    def fail(self, reason: str) -> None:
        """The worker is lost: every generation ends with `reason`, no new one starts."""
        if self.phase != "failed":
            self.phase, self.failure = "failed", reason
            self.has_failed.set()
        for generation in list(self.generations.values()):
            generation.end(Finish("abort", None, reason, 500))
            self._forget(generation)

    async def drain(self) -> None:
        """Refuse new requests and return when the last one has ended, here and in the worker."""
        self.phase = "draining"
        if self.ready is not None:
            await self.link.call(lambda call: messages.Drain(call=call), None)
        while self.generations:
            self._became_idle.clear()
            await self._became_idle.wait()

    def _hang(self) -> str:
        """Why the worker counts as hanging; empty while it does not."""
        server = self.config.server
        if time.monotonic() - self._alive_s > server.worker_timeout_s:
            self.link.receive()  # signs may have arrived while this process was held up itself
        silent_s = time.monotonic() - self._alive_s
        if silent_s > server.worker_timeout_s:
            return f"the worker has given no sign of life for {silent_s:.0f} s"
        if self._turn_s > server.step_timeout_s:
            return f"a step of the worker has not ended for {self._turn_s:.0f} s"
        return ""

    def _take(self, message: messages.Tokens) -> None:
        generation = self.generations.get(message.rid)
        if generation is None:
            return
        before = len(generation.token_ids)
        verify, accepted, last_s = generation.num_verify, generation.num_accepted_drafts, generation.last_s
        if generation.take(message):
            self.link.send(messages.Abort(rid=generation.rid))
        count = len(generation.token_ids) - before
        self.metrics.tokens(count, generation, last_s, is_first=before == 0)
        self.metrics.verified(generation.num_verify - verify, generation.num_accepted_drafts - accepted)
        if generation.finish is not None:
            self._forget(generation)

    def _forget(self, generation: Generation) -> None:
        if self.generations.pop(generation.rid, None) is not None:
            self.metrics.finished(generation)
        if not self.generations:
            self._became_idle.set()

    async def _prepared(self, tasks: Sequence[Task]) -> list[tuple[Generation, messages.Generate]]:
        limits = self.limits
        prompts = [await self._token_ids(task.prompt, task.add_special_tokens) for task in tasks]
        starts = []
        for task, token_ids in zip(tasks, prompts, strict=True):
            check_token_ids(token_ids, limits.vocab_size)
            for sample in range(task.num_samples):
                starts.append(self._start(task, sample, token_ids, limits))
        self.check_open()  # tokenising may have taken a while
        return starts

    async def _token_ids(self, prompt: Prompt, add_special_tokens: bool) -> list[int]:
        if not isinstance(prompt, str):
            return prompt
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise RequestError(f"{self.config.model.path} has no tokenizer.json, so send input_ids instead of text")
        if len(prompt) < _LONG_TEXT:
            return tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
        ids: list[int] = await self.run_in_thread(
            lambda: tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
        )
        return ids

    def _start(
        self, task: Task, sample: int, token_ids: list[int], limits: Limits
    ) -> tuple[Generation, messages.Generate]:
        params = sampling_params(task, sample, len(token_ids), limits)
        if params.stop and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer and this model has none; use stop_token_ids")
        self._num_rids += 1
        rid = f"{task.rid}.{self._num_rids}"
        text = TextStream(
            self.tokenizer,
            stop=params.stop,
            min_tokens=params.min_new_tokens,
            skip_special_tokens=params.skip_special_tokens,
        )
        message = messages.Generate(rid=rid, prompt=pack_tokens(token_ids), sampling=params, bootstrap=task.bootstrap)
        return Generation(rid, task.rid, sample=sample, num_prompt_tokens=len(token_ids), text=text), message
