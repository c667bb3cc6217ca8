"""Greedy FP32 tokens of the real model are the same whatever the cache, the overlap, the batch and the memory."""

import itertools
import random

import pytest
import torch

from stack.cache.pages import POISON
from stack.config import EngineConfig, with_settings
from stack.core import SamplingParams
from stack.engine.local import LocalEngine
from stack.models.tiny import write_tiny

PLAIN = {
    "model.compute_dtype": "float32",
    "cache.kv_dtype": "float32",
    "cache.index_dtype": "float32",
    "cache.conv_dtype": "float32",
    "cache.expected_context": 128,
    "cache.expected_output": 32,
    "scheduler.chunk_tokens": 128,
    "scheduler.reserve_output_tokens": 1,
}
PREFIXES, OVERLAPS, BATCHES, SWAPS = ("none", "hybrid_radix"), (True, False), (1, 16), (False, True)
CELLS = [
    ("none", True, 16, True),
    ("hybrid_radix", True, 16, False),
    ("hybrid_radix", False, 16, True),
    ("none", False, 1, False),
]


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


def generate(checkpoint, asked, count, *, prefix, overlap, batch, swap):
    scarce = sum(-(-len(prompt) // 64) for prompt in asked[: len(asked) // 2])
    settings = {
        "model.path": str(checkpoint),
        "cache.prefix": prefix,
        "scheduler.overlap": overlap,
        "cache.page_size": 64,
    }
    config = with_settings(EngineConfig(), PLAIN | settings | {"cache.budget_bytes": (96 + 2 * len(asked)) << 20})
    engine = LocalEngine(config)
    with engine:
        hold = engine.scheduler.memory.cache.admit(
            engine.scheduler.memory.cache.keys([]),
            num_tokens=(engine.instance.plan.num_pages - scarce) * 64 if swap else 0,
        )
        assert hold is not None
        sampling = SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)
        tokens = []
        for start in range(0, len(asked), batch):
            tokens += engine.generate(asked[start : start + batch], sampling)
        swaps = engine.scheduler.book.totals.swaps
        engine.scheduler.memory.cache.release(hold)
        assert engine.scheduler.memory.cache.page_counts().leased == 0
    return tokens, swaps


@pytest.fixture(scope="module")
def alone(checkpoint):
    asked = prompts(6, 2)
    plain = {"prefix": "none", "overlap": False, "batch": 1, "swap": False}
    return asked, generate(checkpoint, asked, 10, **plain)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("prefix", "overlap", "batch", "swap"), CELLS)
def test_tokens_are_equal(checkpoint, alone, prefix, overlap, batch, swap):
    asked, wanted = alone
    tokens, swaps = generate(checkpoint, asked, 10, prefix=prefix, overlap=overlap, batch=batch, swap=swap)
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
    return asked, generate(checkpoint, asked, 64, prefix="none", overlap=False, batch=1, swap=False)[0]


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("prefix", "overlap", "batch", "swap"),
    [cell for cell in itertools.product(PREFIXES, OVERLAPS, (1, 64), SWAPS) if not (cell[2] == 1 and cell[3])],
)
def test_64_prompts_of_64_tokens_are_equal(checkpoint, many_alone, prefix, overlap, batch, swap):
    asked, wanted = many_alone
    tokens, swaps = generate(checkpoint, asked, 64, prefix=prefix, overlap=overlap, batch=batch, swap=swap)
    assert tokens == wanted
    assert (swaps > 0) == swap
