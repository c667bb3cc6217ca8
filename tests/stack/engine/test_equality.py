"""Greedy FP32 tokens of the real model are the same whatever the cache, overlap, batch, memory and placement."""

import contextlib
import itertools
import random

import pytest
import torch

from stack.cache.pages import POISON
from stack.config import EngineConfig, with_settings
from stack.core import SamplingParams
from stack.engine.local import LocalEngine
from stack.models.tiny import write_tiny
from tests.support.local_pair import pair, single

PLAIN = {
    "model.compute_dtype": "float32",
    "cache.kv_dtype": "float32",
    "cache.index_dtype": "float32",
    "cache.conv_dtype": "float32",
    "cache.page_size": 64,
    "cache.expected_context": 128,
    "cache.expected_output": 32,
    "scheduler.chunk_tokens": 128,
    "scheduler.reserve_output_tokens": 1,
}
RADIX = {"single": ("hybrid_radix",), "1p1d": ("hybrid_radix", "kv_radix")}
"""The caches of each instance of a placement that shares prefixes."""
CELLS = [
    ("none", True, 16, True, "single"),
    ("radix", True, 16, False, "single"),
    ("radix", False, 16, True, "single"),
    ("none", False, 1, False, "single"),
    ("radix", True, 16, True, "1p1d"),
    ("none", False, 16, False, "1p1d"),
]
FULL = [
    cell
    for cell in itertools.product(("none", "radix"), (True, False), (1, 64), (False, True), ("single", "1p1d"))
    if not (cell[2] == 1 and cell[3])
]
"""A request that is alone never runs out of the pages that were there when it was admitted: nothing to swap."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, dtype="float32")
    return folder


def prompts(count: int, pages: int) -> list[list[int]]:
    """Each ends just before a page is full, so that all of them want a page soon; half of them begin alike."""
    draw = random.Random(11)
    shared = [draw.randrange(2, 1024) for _ in range(70)]
    asked = []
    for i in range(count):
        length = 64 * draw.randrange(1 + i % 2, pages + 1) - draw.randrange(2, 9)
        tail = [draw.randrange(2, 1024) for _ in range(length)]
        asked.append((shared + tail)[:length] if i % 2 else tail)
    return asked


def open_engine(place, settings, prefix):
    caches = RADIX[place] if prefix == "radix" else ("none", "none")
    if place == "single":
        return single(settings | {"cache.prefix": caches[0]})
    return pair(settings, {"cache.prefix": caches[0]}, {"cache.prefix": caches[1]})


def generate(checkpoint, asked, count, *, prefix, overlap, batch, swap, place):
    """Tokens of each prompt, and how often the decoding instance swapped a request out."""
    settings = PLAIN | {
        "model.path": str(checkpoint),
        "scheduler.overlap": overlap,
        "cache.budget_bytes": (96 + 2 * len(asked)) << 20,
    }
    sampling = SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)
    scarce = sum(-(-len(prompt) // 64) for prompt in asked[: len(asked) // 2])
    with open_engine(place, settings, prefix) as engine:
        tokens = []
        with engine.decode.leave(scarce) if swap else contextlib.nullcontext():
            for start in range(0, len(asked), batch):
                some = asked[start : start + batch]
                tokens += [found for found, _ in engine.run(some, [sampling] * len(some), timeout_s=3000)]
        return tokens, engine.decode.scheduler.book.totals.swaps


@pytest.fixture(scope="module")
def alone(checkpoint):
    asked = prompts(6, 2)
    return asked, generate(checkpoint, asked, 10, prefix="none", overlap=False, batch=1, swap=False, place="single")[0]


@pytest.mark.slow
@pytest.mark.parametrize(("prefix", "overlap", "batch", "swap", "place"), CELLS)
def test_tokens_are_equal(checkpoint, alone, prefix, overlap, batch, swap, place):
    asked, wanted = alone
    tokens, swaps = generate(checkpoint, asked, 10, prefix=prefix, overlap=overlap, batch=batch, swap=swap, place=place)
    assert tokens == wanted
    assert (swaps > 0) == swap


@pytest.mark.slow
def test_padding_and_stale_memory_change_nothing(checkpoint, alone, monkeypatch):
    """Batches are padded to 4 and 8 rows; every byte that was not written yet is a NaN, the sinks' excepted."""
    asked, wanted = alone
    monkeypatch.setattr("stack.runner.build.decode_buckets", lambda config, max_running: (4, 8))
    settings = PLAIN | {"model.path": str(checkpoint), "cache.budget_bytes": 96 << 20, "cache.prefix": "hybrid_radix"}
    with LocalEngine(with_settings(EngineConfig(), settings)) as engine:
        pages, states = engine.instance.pages, engine.instance.states
        for pool, size in ((pages.buffer, pages.layout.page_bytes), (states.buffer, states.layout.slot_bytes)):
            pool[size:].fill_(POISON)
        sampling = SamplingParams(max_new_tokens=10, temperature=0.0, ignore_eos=True)
        assert engine.generate(asked, sampling) == wanted
        assert not torch.any(pages.rows([0])[0])
        assert not torch.any(states.row(0))


@pytest.fixture(scope="module")
def many_alone(checkpoint):
    asked = prompts(64, 4)
    return asked, generate(checkpoint, asked, 64, prefix="none", overlap=False, batch=1, swap=False, place="single")[0]


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("prefix", "overlap", "batch", "swap", "place"), FULL)
def test_64_prompts_of_64_tokens_are_equal(checkpoint, many_alone, prefix, overlap, batch, swap, place):
    asked, wanted = many_alone
    tokens, swaps = generate(checkpoint, asked, 64, prefix=prefix, overlap=overlap, batch=batch, swap=swap, place=place)
    print(f"{len(tokens)} texts, {sum(map(len, tokens))} tokens, {swaps} swaps")
    assert tokens == wanted
    assert (swaps > 0) == swap
