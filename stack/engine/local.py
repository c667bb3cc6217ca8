"""An engine in this process, without sockets: prompts in, tokens out. For tests and benchmarks."""

import itertools
from collections.abc import Sequence

from stack.config import EngineConfig
from stack.core.clock import Clock, MonotonicClock
from stack.core.errors import ConfigError, EngineError
from stack.core.messages import Generate, Tokens
from stack.core.sampling import SamplingParams
from stack.core.tokens import pack_tokens
from stack.engine.build import Instance, build_instance
from stack.engine.loop import Loop


class LocalEngine:
    """One instance of role `single`, driven by whoever calls it."""

    def __init__(self, config: EngineConfig, clock: Clock | None = None) -> None:
        """Load the model. Raises ConfigError for another role."""
        if config.role != "single":
            raise ConfigError(f"an engine in one process has role single, not {config.role}")
        self.instance: Instance = build_instance(config, clock or MonotonicClock())
        self.scheduler = self.instance.scheduler
        self.loop = Loop(self.scheduler, self.instance.runner, overlap=config.scheduler.overlap)
        self._rids = itertools.count()

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingParams | Sequence[SamplingParams]
    ) -> list[list[int]]:
        """The tokens generated for each prompt, all at once. Raises EngineError if a request fails."""
        return [[*tokens] for tokens, _ in self.run(prompts, sampling)]

    def run(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingParams | Sequence[SamplingParams]
    ) -> list[tuple[list[int], Tokens]]:
        """Tokens and last message of each prompt, in order."""
        each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
        rids = [self.submit(prompt, params) for prompt, params in zip(prompts, each, strict=True)]
        tokens: dict[str, list[int]] = {rid: [] for rid in rids}
        last: dict[str, Tokens] = {}
        while len(last) < len(rids):
            for message in self.turn():
                tokens[message.rid].extend(message.token_ids)
                if message.finish is not None:
                    last[message.rid] = message
        self.settle()
        failed = next((message for message in last.values() if message.finish == "abort"), None)
        if failed is not None:
            raise EngineError(f"request {failed.rid}: {failed.error}")
        return [(tokens[rid], last[rid]) for rid in rids]

    def submit(self, prompt: Sequence[int], sampling: SamplingParams) -> str:
        """Queue a prompt; its id."""
        rid = str(next(self._rids))
        self.scheduler.add(Generate(rid=rid, prompt=pack_tokens(prompt), sampling=sampling))
        return rid

    def turn(self) -> list[Tokens]:
        """One turn of the loop; what it has to say."""
        if not self.loop.turn() and not self.scheduler.book.messages and not self.scheduler.book.is_empty:
            raise EngineError("nothing can run, yet requests are left")
        return self.scheduler.take_messages()

    def settle(self) -> None:
        """Take in the steps under way, so that no memory waits for them."""
        while self.loop.turn():
            pass

    def close(self) -> None:
        """End the runner's stream."""
        self.instance.close()

    def __enter__(self) -> "LocalEngine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
