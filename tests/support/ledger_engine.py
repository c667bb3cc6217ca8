"""A loop over real pools, runner and scheduler with the ledger model, small enough for every page to be scarce."""

from dataclasses import dataclass, field

import torch

from stack.cache import cache_layout, prefix_cache
from stack.cache.pages import PagePool
from stack.cache.states import StatePool, model_memory
from stack.config import EngineConfig, with_settings
from stack.core import ModelGeometry, MonotonicClock, SamplingParams
from stack.core.messages import Generate, Tokens
from stack.core.tokens import pack_tokens
from stack.engine.loop import Loop
from stack.kernels.sample import OP as SAMPLE
from stack.models.tiny import TEXT_CONFIG
from stack.runner import build_runner, new_slot_table
from stack.scheduler import Limits, Memory, Scheduler
from tests.support.ledger_model import LedgerModel

GREEDY = SamplingParams(max_new_tokens=8, temperature=0.0, ignore_eos=True)


@dataclass
class LedgerEngine:
    scheduler: Scheduler
    loop: Loop
    model: LedgerModel
    runner: object
    memory: Memory
    tokens: dict[str, list[int]] = field(default_factory=dict)
    last: dict[str, Tokens] = field(default_factory=dict)

    def ask(self, rid: str, prompt: list[int], sampling: SamplingParams = GREEDY) -> None:
        self.scheduler.add(Generate(rid=rid, prompt=pack_tokens(prompt), sampling=sampling))

    def turn(self) -> bool:
        busy = self.loop.turn()
        for message in self.scheduler.take_messages():
            self.tokens.setdefault(message.rid, []).extend(message.token_ids)
            if message.finish:
                self.last[message.rid] = message
        return busy

    def finish(self, most_turns: int = 5000) -> None:
        for _ in range(most_turns):
            if not self.turn() and self.scheduler.book.is_empty:
                return
        raise AssertionError(f"not done after {most_turns} turns: {self.scheduler.book}")

    def close(self) -> None:
        self.runner.close()


def ledger_engine(
    *, num_pages=64, num_slots=16, max_running=8, max_context=512, clock=None, stream=None, **settings
) -> LedgerEngine:
    plain = {
        "cache.page_size": 8,
        "cache.kv_dtype": "float32",
        "model.compute_dtype": "float32",
        "scheduler.chunk_tokens": 64,
        "scheduler.reserve_output_tokens": 8,
    }
    config = with_settings(EngineConfig(), plain | {k.replace("__", "."): v for k, v in settings.items()})
    geometry = ModelGeometry.from_hf(TEXT_CONFIG)
    layout = cache_layout(geometry, config)
    pages = PagePool(layout, num_pages, "cpu", poison=True)
    states = StatePool(layout, num_slots, 0, "cpu", poison=True)
    memory = model_memory(pages, states, index_workspace_bytes=1 << 20)
    model = LedgerModel(geometry.vocab_size, config.cache.page_size)
    slots = new_slot_table(config, num_slots, max_context, torch.device("cpu"))
    runner = build_runner(
        config, model, pages, states, memory, slots, SAMPLE.bind("auto", "cpu"), max_running=max_running, stream=stream
    )
    book_memory = Memory(
        prefix_cache(config, num_pages=num_pages, num_slots=num_slots),
        page_bytes=layout.page_bytes,
        slot_bytes=layout.slot_bytes,
        swap_bytes=config.cache.swap_bytes,
    )
    limits = Limits(max_context, max_running, geometry.vocab_size, geometry.eos_token_ids)
    scheduler = Scheduler(config, limits, book_memory, clock or MonotonicClock())
    loop = Loop(scheduler, runner, overlap=config.scheduler.overlap)
    return LedgerEngine(scheduler, loop, model, runner, book_memory)
