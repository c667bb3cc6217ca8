"""Long random walks under scarce memory: somebody gives way all the time, and nothing is ever lost.

One transition is one arrival, abort, transfer event or step. 5,000 run in CI, 200,000 by night.
"""

import random

import pytest

from stack.core import RequestError
from tests.stack.scheduler.conftest import build
from tests.stack.scheduler.test_life_cycles import Peer

WALKS = [5_000, pytest.param(200_000, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])]


def settled(one, peer=None):
    book = one.scheduler.book
    for _ in range(20_000):
        one.turn()
        if peer is not None:
            peer.reserve()
            peer.arrive(0)
            peer.let_go(0)
        if book.is_empty and not one.scheduler.num_under_way:
            return
    places = (book.prefilling, book.yielding, book.running, book.swapped, book.receiving, book.arrived, book.leaving)
    raise AssertionError(f"not done: {places}, {len(book.waiting)} wait, {one.scheduler.memory.cache.page_counts()}")


def ask(one, draw, asked):
    family, length = draw.randrange(4), draw.randrange(1, 100)
    try:
        prompt = [2 + (family * 37 + i) % 900 for i in range(length)]
        asked.append(one.ask(prompt, draw.randrange(0, 60)))
    except RequestError:
        return


def check(one):
    cache = one.scheduler.memory.cache
    for counts in (cache.page_counts(), cache.slot_counts()):
        assert counts.free + counts.cached + counts.leased == counts.total


@pytest.mark.parametrize("transitions", WALKS)
@pytest.mark.parametrize("prefix", ["none", "hybrid_radix"])
@pytest.mark.parametrize(("width", "overlap"), [(1, True), (1, False), (4, True)])
def test_a_crowded_single_instance_loses_nothing(transitions, prefix, width, overlap):
    draw = random.Random(transitions + width)
    one = build(
        num_pages=40,
        num_slots=9,
        max_running=6,
        draw=lambda: draw.randrange(1, 900),
        width=width,
        scheduler__overlap=overlap,
        scheduler__reserve_output_tokens=0,
        scheduler__max_queued=20,
        cache__prefix=prefix,
        cache__swap_bytes=90,
    )
    asked: list[str] = []
    for _ in range(transitions):
        what = draw.random()
        if what < 0.12:
            ask(one, draw, asked)
        elif what < 0.13 and asked:
            one.scheduler.abort(draw.choice(asked[-12:]))
        else:
            one.turn()
        check(one)
    settled(one)
    assert set(one.last) == set(asked)
    one.check_empty()
    totals = one.scheduler.book.totals
    assert totals.swaps > transitions // 500
    assert totals.aborted > transitions // 1000


@pytest.mark.parametrize("transitions", WALKS)
@pytest.mark.parametrize("prefix", ["none", "kv_radix"])
@pytest.mark.parametrize(("width", "overlap"), [(1, True), (1, False), (4, True)])
def test_a_crowded_decode_instance_loses_nothing(transitions, prefix, width, overlap):
    draw = random.Random(transitions + width)
    one = build(
        role="decode",
        num_pages=40,
        num_slots=9,
        max_running=6,
        draw=lambda: draw.randrange(1, 900),
        width=width,
        scheduler__overlap=overlap,
        scheduler__reserve_output_tokens=0,
        scheduler__max_queued=20,
        scheduler__extra_inflight=2,
        cache__prefix=prefix,
        cache__swap_bytes=90,
    )
    peer = Peer(one)
    asked: list[str] = []
    for _ in range(transitions):
        what = draw.random()
        if what < 0.12:
            ask(one, draw, asked)
        elif what < 0.13 and asked:
            peer.abort(draw.choice(asked[-12:]))
        elif what < 0.15:
            peer.fail(draw.randrange(10))
        elif what < 0.3:
            peer.arrive(draw.randrange(10))
        elif what < 0.34:
            peer.let_go(draw.randrange(10))
        else:
            one.turn()
        peer.reserve()
        check(one)
    settled(one, peer)
    assert set(one.last) == set(asked)
    one.check_empty()
    assert one.scheduler.book.totals.swaps > transitions // 500
