import itertools
from dataclasses import dataclass, field

import pytest

from stack.cache import prefix_cache
from stack.config import EngineConfig, with_settings
from stack.core import SamplingParams
from stack.core.messages import Generate, Tokens
from stack.core.tokens import pack_tokens
from stack.engine.loop import Loop
from stack.scheduler import Limits, Memory, Scheduler
from tests.support.scripted_runner import ScriptedRunner


class ManualClock:
    def __init__(self):
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s


@dataclass
class Bench:
    """A scheduler over small pools, driven by a runner that invents tokens."""

    scheduler: Scheduler
    runner: ScriptedRunner
    loop: Loop
    clock: ManualClock
    tokens: dict[str, list[int]] = field(default_factory=dict)
    last: dict[str, Tokens] = field(default_factory=dict)
    rids: itertools.count = field(default_factory=itertools.count)

    def ask(self, prompt, count=4, **sampling) -> str:
        rid = str(next(self.rids))
        prompt = list(range(2, 2 + prompt)) if isinstance(prompt, int) else prompt
        params = SamplingParams(max_new_tokens=count, **{"ignore_eos": True, **sampling})
        self.scheduler.add(Generate(rid=rid, prompt=pack_tokens(prompt), sampling=params))
        return rid

    def turn(self) -> bool:
        self.clock.time_s += 1.0
        busy = self.loop.turn()
        for message in self.scheduler.take_messages():
            assert message.rid not in self.last, "a message follows the last one"
            self.tokens.setdefault(message.rid, []).extend(message.token_ids)
            if message.finish:
                self.last[message.rid] = message
        return busy

    def finish(self, most: int = 3000) -> None:
        for _ in range(most):
            if not self.turn() and self.scheduler.book.is_empty:
                return
        raise AssertionError(f"not done after {most} turns: {self.scheduler.book}")

    def check_empty(self) -> None:
        cache = self.scheduler.memory.cache
        for counts in (cache.page_counts(), cache.slot_counts()):
            assert counts.leased == 0
            assert counts.free + counts.cached == counts.total
        assert not cache.leases


def build(
    *, num_pages=32, num_slots=12, max_running=6, max_context=256, draw=None, width=1, listen=None, **settings
) -> Bench:
    plain = {
        "cache.page_size": 8,
        "scheduler.chunk_tokens": 32,
        "scheduler.reserve_output_tokens": 4,
        "scheduler.request_deadline_s": 1e6,
    }
    if width > 1:
        plain |= {"speculation.method": "dflash2", "speculation.verify_width": width}
    config = with_settings(EngineConfig(), plain | {k.replace("__", "."): v for k, v in settings.items()})
    clock = ManualClock()
    memory = Memory(
        prefix_cache(config, num_pages=num_pages, num_slots=num_slots),
        page_bytes=1,
        slot_bytes=1,
        swap_bytes=config.cache.swap_bytes,
    )
    limits = Limits(max_context, max_running, 1000, (1,))
    scheduler = Scheduler(config, limits, memory, clock)
    counter = itertools.count(2)
    runner = ScriptedRunner(
        8,
        draw or (lambda: 2 + next(counter) % 900),
        width=width,
        max_rows=max_running,
        max_tokens=config.scheduler.chunk_tokens,
    )
    loop = Loop(scheduler, runner, overlap=config.scheduler.overlap, listen=listen)
    return Bench(scheduler, runner, loop, clock)


@pytest.fixture
def bench():
    return build
