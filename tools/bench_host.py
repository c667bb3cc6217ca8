"""What a decode step and an admission cost on the host, without a model: one core, pure Python and one packed copy.

A decode instance with 132 running requests of 64K tokens over a radix of 10,000 prefixes. A step is everything the
worker's thread does for it: plan, pack, hand over, take in 132 tokens, encode 132 messages. An admission is everything
from a received message with 65,536 token ids to its first row in a step. The last line is the result; targets are
1.0 ms and 2 ms.
"""

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stack.cache import prefix_cache
from stack.cache.prefix import PrefixCache
from stack.config import EngineConfig, with_settings
from stack.core import MonotonicClock, SamplingParams
from stack.core.messages import Generate, decode_to_worker, encode
from stack.core.plan import StepPlan, StepResult
from stack.core.tokens import pack_tokens
from stack.engine.loop import Loop
from stack.runner.packing import Packer
from stack.runner.runner import decode_arrays
from stack.runner.slots import slot_arrays
from stack.scheduler import Limits, Memory, Request, Scheduler

PAGE = 256
VOCAB = 154_880


class NoDevice:
    """Packs every plan as the runner does, and answers one token a row at once."""

    def __init__(self) -> None:
        self._packer = Packer(torch.device("cpu"), 1 << 20)
        self.plan = StepPlan(step=0, kind="memory")

    def launch(self, plan: StepPlan) -> "NoDevice":
        """Pack."""
        self._packer.pack({**slot_arrays(plan), **decode_arrays(plan, len(plan.decode_slots))})
        self._packer.transfer()()
        launched = NoDevice.__new__(NoDevice)
        launched.plan = plan
        return launched

    def collect(self, handle: "NoDevice") -> StepResult:
        """One token a row."""
        return StepResult(step=handle.plan.step, tokens=[[7]] * len(handle.plan.decode_slots), device_s=0.0)


class Bench:
    """One scheduler under load."""

    def __init__(self, *, running: int, context: int, prefixes: int) -> None:
        plain = {"role": "decode", "cache.prefix": "kv_radix", "cache.page_size": PAGE}
        self.config = with_settings(EngineConfig(), plain)
        num_pages = (running + 8) * (context // PAGE + 16) // 8 + 4 * prefixes + context // PAGE
        cache = prefix_cache(self.config, num_pages=num_pages, num_slots=running + 8)
        self.draw = random.Random(0)
        self.context = context
        fill(cache, prefixes, self.draw)
        limits = Limits(context + 100_000, running, VOCAB, (1,))
        self.scheduler = Scheduler(self.config, limits, Memory(cache), MonotonicClock())
        self.loop = Loop(self.scheduler, NoDevice(), overlap=True)
        self.shared = [self.draw.randrange(VOCAB) for _ in range(context * 15 // 16)]
        self._rid = 0

    def prompt(self) -> list[int]:
        """`context` tokens, 15 of 16 shared with everybody."""
        return self.shared + [self.draw.randrange(VOCAB) for _ in range(self.context - len(self.shared))]

    def message(self, prompt: list[int]) -> bytes:
        """What the HTTP process sends for a prompt."""
        self._rid += 1
        sampling = SamplingParams(max_new_tokens=50_000, ignore_eos=True)
        return encode(Generate(rid=str(self._rid), prompt=pack_tokens(prompt), sampling=sampling))

    def admit(self, message: bytes) -> Request:
        """From a received message to memory, arrival and a place in the batch."""
        ask = decode_to_worker(message)
        assert isinstance(ask, Generate)
        self.scheduler.add(ask)
        (request,) = self.scheduler.reserve()
        self.scheduler.arrived(request, 5, 0)
        return request

    def step(self) -> None:
        """One turn and its messages."""
        self.loop.turn()
        for message in self.scheduler.take_messages():
            encode(message)

    def swap_one(self) -> None:
        """End a request and admit another; a step settles what is left."""
        self.scheduler.abort(self.scheduler.book.running[0].rid)
        self.step()
        self.step()


def fill(cache: PrefixCache, prefixes: int, draw: random.Random) -> None:
    """Cache `prefixes` prompts of four pages that nobody holds."""
    for _ in range(prefixes):
        keys = cache.keys([draw.randrange(VOCAB) for _ in range(4 * PAGE)])
        lease = cache.admit(keys, num_tokens=4 * PAGE)
        assert lease is not None
        cache.publish(lease, 4 * PAGE)
        cache.release(lease)


def median_ms(action: Callable[[], object], repeats: int, between: Callable[[], object] | None = None) -> float:
    """Median milliseconds of processor time of `action`, so that a busy machine does not change it."""
    times = []
    for _ in range(repeats):
        begun = time.thread_time()
        action()
        times.append(time.thread_time() - begun)
        if between is not None:
            between()
    return 1e3 * statistics.median(times)


def measure(running: int, context: int, prefixes: int, repeats: int) -> tuple[float, float]:
    """(decode step, admission) in milliseconds."""
    bench = Bench(running=running, context=context, prefixes=prefixes)
    for _ in range(running):
        bench.admit(bench.message(bench.prompt()))
        bench.step()
    for _ in range(10):
        bench.step()
    step_ms = median_ms(bench.step, repeats)
    messages = iter([bench.message(bench.prompt()) for _ in range(repeats // 4 + 1)])
    bench.swap_one()

    def admit() -> None:
        bench.admit(next(messages))
        bench.step()

    admit_ms = median_ms(admit, repeats // 4, between=bench.swap_one)
    return step_ms, max(admit_ms - step_ms, 0.0)


def main() -> int:
    """Print a table and the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--running", type=int, default=132)
    parser.add_argument("--context", type=int, default=65_536)
    parser.add_argument("--prefixes", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--scaling", action="store_true", help="also measure fewer requests and fewer prefixes")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    if options.scaling:
        for running, prefixes in ((options.running // 4, options.prefixes), (options.running, options.prefixes // 100)):
            step_ms, admit_ms = measure(running, options.context, prefixes, options.repeats)
            print(f"{running} running, {prefixes} prefixes: decode step {step_ms:.3f} ms, admission {admit_ms:.3f} ms")
    step_ms, admit_ms = measure(options.running, options.context, options.prefixes, options.repeats)
    print(f"decode step: {step_ms:.3f} ms, admission: {admit_ms:.3f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
