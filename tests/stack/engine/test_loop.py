import random

import pytest

from stack.core import SamplingParams
from tests.support.ledger_engine import ledger_engine
from tests.support.ledger_model import expected_tokens

VOCAB = 1024


@pytest.fixture
def engine():
    built = []

    def build(**settings):
        built.append(ledger_engine(**settings))
        return built[-1]

    yield build
    for one in built:
        one.close()


def prompts(count: int, seed: int = 0, shared: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    prefix = [draw.randrange(2, VOCAB) for _ in range(shared)]
    return [prefix + [draw.randrange(2, VOCAB) for _ in range(draw.randrange(1, 60))] for _ in range(count)]


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)


def check(engine, asked, count):
    for i, prompt in enumerate(asked):
        engine.ask(str(i), prompt, greedy(count))
    engine.finish()
    for i, prompt in enumerate(asked):
        assert engine.tokens[str(i)] == expected_tokens(prompt, count, VOCAB), f"request {i}"
    counts = engine.memory.cache.page_counts()
    assert counts.leased == 0
    assert engine.memory.cache.slot_counts().leased == 0


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("prefix", ["none", "hybrid_radix"])
@pytest.mark.parametrize("num_pages", [64, 26], ids=["roomy", "scarce"])
def test_tokens_do_not_depend_on_overlap_cache_or_memory(engine, overlap, prefix, num_pages):
    one = engine(num_pages=num_pages, scheduler__overlap=overlap, cache__prefix=prefix)
    check(one, prompts(10, shared=20), 24)
    if num_pages == 26:
        assert one.scheduler.book.totals.swaps > 0
