"""One instance of the real engine in this process, asked many questions greedily: what assessment measures with.

B requests at once. The engine's own scheduler, caches, runner and speculators serve; only HTTP is left out.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.config import EngineConfig, with_settings
from stack.core import EngineError, SamplingParams, messages
from stack.core.clock import MonotonicClock
from stack.core.tokens import pack_tokens
from stack.engine.build import build_instance
from stack.engine.loop import Loop
from stack.engine.roles import open_side

BASE: dict[str, Any] = {
    "model.compute_dtype": "bfloat16",
    "cache.prefix": "hybrid_radix",
    "cache.kv_dtype": "bfloat16",
    "cache.index_dtype": "bfloat16",
    "cache.budget_bytes": 400 * 2**20,
    "cache.expected_context": 1024,
    "cache.expected_output": 160,
    "scheduler.max_running": 16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back: tokens, and the steps that verified drafts with the drafts they accepted."""

    tokens: list[int]
    num_verify: int
    num_accepted: int

    @property
    def accept_length(self) -> float | None:
        """Tokens a verify step committed on average; None without any."""
        return 1 + self.num_accepted / self.num_verify if self.num_verify else None


class Respondent:
    """An instance that answers; settings are dotted paths of the engine's configuration."""

    def __init__(self, checkpoint: Path, settings: dict[str, Any]) -> None:
        config = with_settings(EngineConfig(), {"model.path": str(checkpoint), **BASE, **settings})
        clock = MonotonicClock()
        self._instance = build_instance(config, clock)
        self._side, _ = open_side(self._instance, clock)
        self._loop = Loop(self._instance.scheduler, self._instance.runner, overlap=config.scheduler.overlap)

    def answers(self, prompts: Sequence[Sequence[int]], *, limit: int, end: int) -> list[Answer]:
        """Greedy answers of at most `limit` tokens, in order; `end` is a token that ends one."""
        sampling = SamplingParams(max_new_tokens=limit, temperature=0.0, stop_token_ids=(end,))
        scheduler = self._instance.scheduler
        for rid, prompt in enumerate(prompts):
            self._side.begin(messages.Generate(rid=str(rid), prompt=pack_tokens(prompt), sampling=sampling))
        tokens: dict[str, list[int]] = {str(rid): [] for rid in range(len(prompts))}
        last: dict[str, messages.Tokens] = {}
        while len(last) < len(prompts) or not scheduler.book.is_empty:
            self._side.before_plan()
            if not self._loop.turn() and scheduler.book.is_empty and len(last) < len(prompts):
                raise EngineError("nothing can run, yet questions are left")
            self._side.after_step()
            for message in scheduler.take_messages():
                tokens[message.rid] += message.token_ids
                if message.finish == "abort":
                    raise EngineError(f"question {message.rid}: {message.error}")
                if message.finish:
                    last[message.rid] = message
        ordered = [(tokens[str(rid)], last[str(rid)]) for rid in range(len(prompts))]
        return [Answer(tokens=t, num_verify=m.num_verify, num_accepted=m.num_accepted_drafts) for t, m in ordered]

    def close(self) -> None:
        """End the runner's stream."""
        self._side.close()
        self._instance.close()


@contextlib.contextmanager
def respondent(checkpoint: Path, settings: dict[str, Any]) -> Iterator[Respondent]:
    """A respondent that is closed behind the block."""
    one = Respondent(checkpoint, settings)
    try:
        yield one
    finally:
        one.close()
