"""`python -m stack.engine.bench CONFIG.json`: one worker's loop under a closed load, without HTTP and without a router.

For finding out where a step's time goes: the same scheduler, runner and caches that serve, driven by made-up prompts.
Runs role `single`, and role `decode` with `synthetic_admission`. The last line of the output is JSON.

Numbers of one window: `input_tok_s` counts prompt tokens that were computed, `output_tok_s` tokens that came out, both
over the window's wall time; `idle_share` is the part of it in which no step ran on the device. With `--profile-steps`
there are no rates, for a traced window has none: `profile` holds, for each kind of step apart, what one step ran.
"""

import argparse
import json
import logging
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from stack.config import EngineConfig, load, parse_settings
from stack.core import ConfigError, EngineError, SamplingParams
from stack.core.clock import MonotonicClock
from stack.core.messages import Generate
from stack.core.plan import StepPlan, StepResult
from stack.core.tokens import pack_tokens
from stack.engine.build import Instance, build_instance
from stack.engine.kernel_trace import StepTraces, doubts
from stack.engine.loop import Loop
from stack.engine.roles import open_side


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`count` requests of `input_len` tokens, the first `shared_len` in common, `concurrency` at a time."""

    count: int
    input_len: int
    output_len: int
    shared_len: int
    concurrency: int
    seed: int = 0


@dataclass(slots=True)
class _Window:
    """What happened since the window began."""

    begun_s: float = field(default_factory=time.perf_counter)
    steps: list[tuple[StepPlan, StepResult]] = field(default_factory=list)
    ended: int = 0

    def summary(self) -> dict[str, Any]:
        wall_s = time.perf_counter() - self.begun_s
        kinds = {kind: [result for plan, result in self.steps if plan.kind == kind] for kind in ("prefill", "decode")}
        prompt = sum(len(row.token_ids) for plan, _ in self.steps if plan.kind == "prefill" for row in plan.prefill)
        output = sum(len(tokens) for _, result in self.steps for tokens in result.tokens)
        busy_s = sum(result.device_s for _, result in self.steps)
        running = [len(plan.decode_slots) for plan, _ in self.steps if plan.kind == "decode"]
        return {
            "wall_s": wall_s,
            "requests": self.ended,
            "input_tok_s": prompt / wall_s,
            "output_tok_s": output / wall_s,
            "idle_share": max(0.0, 1 - busy_s / wall_s),
            "running_p50": statistics.median(running) if running else None,
            "steps": {kind: _step_times(results) for kind, results in kinds.items() if results},
        }


def _step_times(results: list[StepResult]) -> dict[str, float]:
    times_ms = sorted(1e3 * result.device_s for result in results)
    return {
        "count": len(times_ms),
        "device_ms_p10": times_ms[len(times_ms) // 10],
        "device_ms_p50": statistics.median(times_ms),
        "device_ms_p90": times_ms[-1 - len(times_ms) // 10],
    }


class Bench:
    """One instance and its loop."""

    def __init__(self, config: EngineConfig) -> None:
        """Load it. Raises ConfigError for a role that needs another instance."""
        if config.role == "prefill" or (config.role == "decode" and not config.synthetic_admission):
            raise ConfigError(
                f"role {config.role} needs another instance; use single, or decode with synthetic_admission"
            )
        clock = MonotonicClock()
        self.device = torch.device(config.model.device)
        self.instance: Instance = build_instance(config, clock)
        self._side, _ = open_side(self.instance, clock)
        self._window = _Window()
        self._loop = Loop(
            self.instance.scheduler,
            self.instance.runner,
            overlap=config.scheduler.overlap,
            on_step=lambda plan, result: self._window.steps.append((plan, result)),
        )

    def run(self, load_: Load, *, on_turn: Callable[[_Window], bool] | None = None) -> dict[str, Any]:
        """Serve the load and sum it up; `on_turn` may end the window early by saying False."""
        prompts = iter(_prompts(load_, self.instance.geometry.vocab_size))
        sampling = SamplingParams(max_new_tokens=load_.output_len, temperature=0.0, ignore_eos=True)
        self._window, alive = _Window(), 0
        while self._window.ended < load_.count:
            while alive < load_.concurrency and (prompt := next(prompts, None)) is not None:
                rid = f"{id(self._window)}-{prompt[-1]}-{time.perf_counter_ns()}"
                self._side.begin(Generate(rid=rid, prompt=pack_tokens(prompt), sampling=sampling))
                alive += 1
            self._turn()
            ended = sum(message.finish is not None for message in self._messages())
            alive, self._window.ended = alive - ended, self._window.ended + ended
            if on_turn is not None and not on_turn(self._window):
                break
        return self._window.summary()

    def close(self) -> None:
        """End the runner's stream."""
        self.instance.close()

    def _turn(self) -> None:
        self._side.before_plan()
        if not self._loop.turn() and self.instance.scheduler.book.is_empty:
            raise EngineError("nothing can run, yet requests are left")
        self._side.after_step()

    def _messages(self) -> list[Any]:
        messages = self.instance.scheduler.take_messages()
        failed = next((message for message in messages if message.finish == "abort"), None)
        if failed is not None:
            raise EngineError(f"request {failed.rid}: {failed.error}")
        return messages


def _prompts(load_: Load, vocab_size: int) -> list[list[int]]:
    draw = random.Random(load_.seed)
    shared = [draw.randrange(2, vocab_size) for _ in range(load_.shared_len)]
    rest = load_.input_len - load_.shared_len
    return [[*shared, *(draw.randrange(2, vocab_size) for _ in range(rest))] for _ in range(load_.count)]


def add_load_arguments(parser: argparse.ArgumentParser, *, config: str, num: str, output_len: int) -> None:
    """The configuration, its settings and the load; `config` and `num` say what the first and `--num` are."""
    parser.add_argument("config", type=Path, help=config)
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="change one setting")
    parser.add_argument("--num", type=int, default=4, help=f"{num} (default 4)")
    parser.add_argument("--input", type=int, default=65536, help="prompt tokens (default 65536)")
    parser.add_argument("--output", type=int, default=output_len, help=f"generated tokens (default {output_len})")
    parser.add_argument("--shared", type=int, default=0, help="prompt tokens that all requests have in common")
    parser.add_argument("--concurrency", type=int, default=2, help="requests alive at once (default 2)")


def load_of(options: argparse.Namespace, *, seed: int, count: int | None = None) -> Load:
    """What `add_load_arguments` read; `count` in place of `--num`."""
    return Load(
        count=options.num if count is None else count, input_len=options.input, output_len=options.output,
        shared_len=options.shared, concurrency=options.concurrency, seed=seed,
    )  # fmt: skip


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m stack.engine.bench", description=(__doc__ or "").splitlines()[0])
    add_load_arguments(parser, config="engine configuration, JSON", num="requests to serve", output_len=10)
    parser.add_argument("--warmup", type=int, default=1, help="requests served before the window (default 1)")
    parser.add_argument(
        "--profile-steps",
        type=int,
        default=0,
        help="trace this many steps, one at a time, and list what a step of each kind runs",
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    try:
        alone = {"scheduler.overlap": False} if options.profile_steps else {}
        bench = Bench(load(options.config, parse_settings(options.set) | alone))
        result = _measure(bench, options)
    except EngineError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    print(json.dumps(result))  # noqa: T201
    return 0


def _measure(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    if options.warmup:
        warmup = load_of(options, seed=1, count=options.warmup)
        print(f"warm-up: {json.dumps(bench.run(warmup))}", file=sys.stderr)  # noqa: T201
    window = load_of(options, seed=2)
    result = profiled(bench, window, options.profile_steps) if options.profile_steps else bench.run(window)
    bench.close()
    return {**result, "impls": bench.instance.impls, "max_running": bench.instance.plan.max_running}


def profiled(bench: Bench, load_: Load, num_steps: int) -> dict[str, Any]:
    """What one step of each kind runs, over `num_steps` traced steps; `doubts` says where that does not explain it.

    The bench's steps must not overlap.
    """
    traces = StepTraces(bench.device, num_steps)
    traces.watch(bench.instance.runner)
    bench.run(load_, on_turn=lambda _: not traces.is_done)
    found = traces.report()
    for doubt in doubts(found):
        print(doubt, file=sys.stderr)  # noqa: T201
    return {"profile": found, "doubts": doubts(found)}


if __name__ == "__main__":
    sys.exit(main())
