import random

import pytest

from stack.core import SamplingParams
from stack.engine.warm import warm_up
from stack.scheduler import Phase
from stack.scheduler.book import Totals
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


def sampled(count: int, seed: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=50.0, top_k=40, seed=seed, ignore_eos=True)


def test_a_seed_decides_a_requests_draws_whatever_runs_beside_it(engine):
    prompt = list(range(2, 30))
    alone = engine()
    alone.ask("a", prompt, sampled(12, 7))
    alone.finish()
    crowd = engine(num_pages=200)
    for i, other in enumerate(prompts(6, seed=4)):
        crowd.ask(f"x{i}", other, sampled(20, i))
    crowd.ask("a", prompt, sampled(12, 7))
    crowd.ask("b", prompt, sampled(12, 8))
    crowd.finish()
    assert crowd.tokens["a"] == alone.tokens["a"]
    assert crowd.tokens["b"] != alone.tokens["a"]


def test_a_swapped_request_draws_the_same_tokens(engine):
    asked = prompts(8, seed=5)
    runs = []
    for num_pages in (200, 26):
        one = engine(num_pages=num_pages)
        for i, prompt in enumerate(asked):
            one.ask(str(i), prompt, sampled(24, i))
        one.finish()
        runs.append(one)
    assert runs[1].scheduler.book.totals.swaps > 0
    assert runs[0].tokens == runs[1].tokens


def in_phase(engine, rid: str, phase: Phase, most: int = 400) -> bool:
    for _ in range(most):
        request = engine.scheduler.book.by_rid.get(rid)
        if request is None:
            return False
        if request.phase is phase:
            return True
        engine.turn()
    return False


@pytest.mark.parametrize("prefix", ["none", "hybrid_radix"])
@pytest.mark.parametrize(
    ("phase", "rid"),
    [(Phase.QUEUED, "9"), (Phase.PREFILLING, "5"), (Phase.RUNNING, "3"), (Phase.SWAPPED, "4")],
    ids=lambda value: str(value),
)
def test_an_abort_at_every_stage_returns_its_memory_and_disturbs_nobody(engine, prefix, phase, rid):
    one = engine(num_pages=30, max_running=6, num_slots=8, cache__prefix=prefix, scheduler__chunk_tokens=24)
    asked = prompts(10, seed=9, shared=16)
    for i, prompt in enumerate(asked):
        one.ask(str(i), prompt, greedy(30))
    target = next((r for r in [rid, *map(str, range(10))] if in_phase(one, r, phase)), None)
    assert target is not None, f"nobody was ever {phase}"
    one.scheduler.abort(target)
    one.finish()
    assert one.last[target].finish == "abort"
    for i, prompt in enumerate(asked):
        if str(i) != target:
            assert one.tokens[str(i)] == expected_tokens(prompt, 30, VOCAB)
    counts, slots = one.memory.cache.page_counts(), one.memory.cache.slot_counts()
    assert counts.leased == slots.leased == 0
    assert one.memory.flush() == counts.cached
    assert one.memory.cache.page_counts().free == counts.total


def test_a_hit_resumes_from_the_snapshot_and_computes_only_the_rest(engine):
    one = engine(cache__prefix="hybrid_radix", num_pages=100)
    first, second = (list(range(2, 42)) + tail for tail in ([50, 51, 52], [60, 61]))
    for rid, prompt in (("0", first), ("1", second), ("2", second + [9] * 20)):
        one.ask(rid, prompt, greedy(6))
        one.finish()
    assert one.last["2"].cached_tokens >= 40
    assert one.tokens["1"] == expected_tokens(second, 6, VOCAB)
    assert one.tokens["2"] == expected_tokens(second + [9] * 20, 6, VOCAB)


def test_an_error_on_the_device_reaches_the_loop(engine):
    one = engine()
    one.model.forward = lambda *args, **kwargs: 1 / 0
    one.ask("0", [5, 6])
    with pytest.raises(ZeroDivisionError):
        one.finish()


@pytest.mark.parametrize("role", ["single", "prefill"])
def test_a_warm_up_runs_full_and_short_chunks_and_leaves_nothing(engine, role):
    one = engine(role=role, cache__prefix="hybrid_radix")
    assert warm_up(one.scheduler, one.runner) == 4
    assert one.model.largest_rows == 64
    counts = one.memory.cache.page_counts()
    assert (counts.leased, counts.cached) == (0, 0)
    assert one.scheduler.book.totals == Totals()
    one.ask("0", [5, 6, 7], greedy(1))
    one.finish()
    assert one.tokens["0"] == expected_tokens([5, 6, 7], 1, VOCAB)
