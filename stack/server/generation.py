"""One generation and the group of them that one HTTP request asked for, fed by the worker's messages.

Knows nothing of HTTP. A generation ends exactly once: by the worker, by a stop string, by a failure or by its client.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from stack.core.messages import Tokens
from stack.server.detokenizer import TextStream


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a generation ended. `kind` is stop, length or abort."""

    kind: str
    matched: int | str | None = None
    error: str = ""
    status: int = 200

    @property
    def is_failure(self) -> bool:
        """Whether the client must not take the text for an answer."""
        return self.status >= 400


class Generation:
    """Tokens, text and counts of one sample of one prompt."""

    def __init__(self, rid: str, client_rid: str, *, sample: int = 0, num_prompt_tokens: int, text: TextStream) -> None:
        self.rid = rid
        """Unique in this process; what the worker knows it by."""
        self.client_rid = client_rid
        """What the client calls it; may repeat."""
        self.sample = sample
        """Which sample of its prompt it is."""
        self.index = 0
        """Its place in its group."""
        self.num_prompt_tokens = num_prompt_tokens
        self.text = text
        self.token_ids: list[int] = []
        self.finish: Finish | None = None
        self.cached_tokens = 0
        self.num_verify = 0
        self.num_accepted_drafts = 0
        self.num_swaps = 0
        self.timing: dict[str, float] = {}
        self.created_s = time.monotonic()
        self.last_s = self.created_s
        self.group: Group | None = None

    @property
    def latency_s(self) -> float:
        """Seconds from its start to its newest token or its end."""
        return self.last_s - self.created_s

    def take(self, message: Tokens) -> bool:
        """Add what the worker says; True when a stop string ended it here and the worker should stop too."""
        if self.finish is not None:
            return False
        self.last_s = time.monotonic()
        self.cached_tokens = message.cached_tokens
        self.num_verify = message.num_verify
        self.num_accepted_drafts = message.num_accepted_drafts
        self.num_swaps = message.num_swaps
        self.timing = message.timing or self.timing
        if self._push(message):
            self._end(Finish("stop", self.text.matched))
            return message.finish is None
        if message.finish == "abort":
            status = message.status if 400 <= message.status < 600 else 500
            self._end(Finish("abort", None, message.error or "the worker ended the request", status))
        elif message.finish is not None:
            self._end(Finish(message.finish, message.matched))
        else:
            self._tell()
        return False

    def end(self, finish: Finish) -> None:
        """End it from this side; nothing happens when it has ended."""
        if self.finish is None:
            self.last_s = time.monotonic()
            self._end(finish)

    def _push(self, message: Tokens) -> bool:
        """Take tokens up to one that completes a stop string; an end token is counted and not written."""
        is_ended = message.finish == "stop" and message.matched is not None
        last = len(message.token_ids) - 1
        for place, token_id in enumerate(message.token_ids):
            self.token_ids.append(token_id)
            if not (is_ended and place == last) and self.text.push(token_id):
                return True
        return False

    def _end(self, finish: Finish) -> None:
        self.text.close()
        self.finish = finish
        self._tell()

    def _tell(self) -> None:
        if self.group is not None:
            self.group.mark(self)


class Group:
    """The generations behind one HTTP request, in order: prompt by prompt, sample by sample."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self.generations = tuple(generations)
        self.failure: Finish | None = None
        """The first failed generation's end."""
        self._num_open = len(self.generations)
        self._changed: dict[Generation, None] = {}
        self._wake = asyncio.Event()
        for index, generation in enumerate(self.generations):
            generation.index = index
            generation.group = self

    @property
    def is_done(self) -> bool:
        """Whether every generation has ended."""
        return self._num_open == 0

    def mark(self, generation: Generation) -> None:
        """Note that a generation has news; its end is news once."""
        self._changed[generation] = None
        if generation.finish is not None:
            self._num_open -= 1
            if generation.finish.is_failure and self.failure is None:
                self.failure = generation.finish
        self._wake.set()

    async def changes(self) -> AsyncIterator[Generation]:
        """Each generation that has news, until all have ended; news that piled up counts once."""
        while True:
            while self._changed:
                generation = next(iter(self._changed))
                del self._changed[generation]
                yield generation
            if self.is_done:
                return
            self._wake.clear()
            await self._wake.wait()

    async def first_change(self) -> None:
        """Return once any generation has news."""
        await self._wake.wait()

    async def done(self) -> None:
        """Return once all have ended, or one has failed."""
        while not self.is_done and self.failure is None:
            self._wake.clear()
            await self._wake.wait()
