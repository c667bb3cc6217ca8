"""Random lives of requests: whatever happens, plans are sound and every page and slot comes back.

The decode instance's peer is played here: a reserved request arrives, fails or is cancelled, and its memory is let go
of later, as a transfer would; between two turns of the loop, and in the middle of one, while a step runs.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.core import RequestError

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 90), st.integers(0, 30), st.integers(0, 3)),
        st.tuples(st.just("abort"), st.integers(0, 10)),
        st.tuples(st.just("turns"), st.integers(1, 6)),
    ),
    max_size=60,
)


def live(bench, actions, seed, *, overlap, prefix, width, num_pages, num_slots):
    draw = random.Random(seed)
    one = bench(
        num_pages=num_pages,
        num_slots=num_slots,
        max_running=5,
        draw=lambda: draw.randrange(1, 900),
        width=width,
        scheduler__overlap=overlap,
        cache__prefix=prefix,
        cache__swap_bytes=60,
    )
    asked: list[str] = []
    for action in actions:
        if action[0] == "ask":
            _, length, count, family = action
            prompt = [2 + (family * 37 + i) % 900 for i in range(length)]
            try:
                asked.append(one.ask(prompt, count, ignore_eos=bool(seed % 2)))
            except RequestError as error:
                assert "instance has" in str(error)
        elif action[0] == "abort" and asked:
            one.scheduler.abort(asked[action[1] % len(asked)])
        elif action[0] == "turns":
            for _ in range(action[1]):
                one.turn()
        counts = one.scheduler.memory.cache.page_counts()
        assert counts.free + counts.cached + counts.leased == counts.total
    one.finish()
    assert set(one.last) == set(asked)
    one.check_empty()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("prefix", ["none", "hybrid_radix"])
@pytest.mark.parametrize("width", [1, 4])
@settings(max_examples=60, deadline=None)
@given(
    actions=ACTIONS,
    seed=st.integers(0, 5),
    num_pages=st.integers(6, 40),
    num_slots=st.integers(1, 12),
)
def test_every_life_ends_and_returns_its_memory(actions, seed, overlap, prefix, width, num_pages, num_slots):
    from tests.stack.scheduler.conftest import build

    live(build, actions, seed, overlap=overlap, prefix=prefix, width=width, num_pages=num_pages, num_slots=num_slots)


EVENTS = st.tuples(st.sampled_from(["arrive", "fail", "let_go", "abort"]), st.integers(0, 10))
TRANSFERS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 90), st.integers(0, 30), st.integers(0, 3)),
        EVENTS,
        st.tuples(st.just("turns"), st.integers(1, 6), st.lists(EVENTS, max_size=3)),
    ),
    max_size=80,
)


class Peer:
    """What the hand-off does for a decode instance, one event at a time."""

    def __init__(self, bench):
        self.scheduler = bench.scheduler
        self.runner = bench.runner
        self.writing = []
        self.holding = []

    def reserve(self):
        self.writing += self.scheduler.reserve()

    def arrive(self, at: int):
        if self.writing:
            request = self.writing.pop(at % len(self.writing))
            slot, pages = request.slot, list(request.pages)
            self.scheduler.arrived(request, 5 + at, 0)
            self.runner.receive(slot, request.pages or pages, request.num_prompt)

    def fail(self, at: int):
        if self.writing:
            request = self.writing.pop(at % len(self.writing))
            self.holding.append(request)
            self.scheduler.fail(request, "the transfer failed", 500)

    def abort(self, rid: str):
        for request in self.scheduler.abort(rid):
            if request in self.writing:
                self.writing.remove(request)
                self.holding.append(request)

    def let_go(self, at: int):
        if self.holding:
            self.scheduler.let_go(self.holding.pop(at % len(self.holding)))


def receive(bench, actions, *, overlap, prefix, width, num_pages, num_slots, extra):
    heard: list[tuple[str, int]] = []

    def happen(name, at):
        if name != "abort":
            getattr(peer, name)(at)
        elif asked:
            peer.abort(asked[at % len(asked)])

    def listen():
        if heard:
            happen(*heard.pop())
        peer.reserve()

    one = bench(
        listen=listen,
        num_pages=num_pages,
        num_slots=num_slots,
        max_running=4,
        width=width,
        role="decode",
        scheduler__overlap=overlap,
        scheduler__extra_inflight=extra,
        cache__prefix=prefix,
        cache__swap_bytes=60,
    )
    one.runner.num_looks = 3
    peer = Peer(one)
    asked: list[str] = []
    book = one.scheduler.book
    for action in actions:
        if action[0] == "ask":
            _, length, count, family = action
            prompt = [2 + (family * 37 + i) % 900 for i in range(length)]
            try:
                asked.append(one.ask(prompt, count))
            except RequestError as error:
                assert "instance has" in str(error)
        elif action[0] == "turns":
            heard[:] = action[2]
            for _ in range(action[1]):
                one.turn()
                peer.reserve()
        else:
            happen(*action)
        peer.reserve()
        assert len(book.running) <= 4
        assert book.num_holding <= 4 + extra
        held = {page for request in peer.holding + peer.writing for page in request.lease.private_pages}
        free = one.scheduler.memory.cache.pages
        assert all(free.is_used(page) for page in held), "a page that a transfer may write to was given back"
    for _ in range(3000):
        one.turn()
        peer.reserve()
        peer.arrive(0)
        peer.let_go(0)
        if book.is_empty and not one.scheduler.num_under_way:
            break
    one.turn()
    assert set(one.last) == set(asked)
    one.check_empty()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("prefix", ["none", "kv_radix"])
@pytest.mark.parametrize("width", [1, 4])
@settings(max_examples=60, deadline=None)
@given(actions=TRANSFERS, num_pages=st.integers(6, 40), num_slots=st.integers(1, 10), extra=st.integers(0, 3))
def test_every_transfer_ends_and_returns_its_memory(actions, num_pages, num_slots, extra, overlap, prefix, width):
    from tests.stack.scheduler.conftest import build

    receive(
        build,
        actions,
        overlap=overlap,
        prefix=prefix,
        width=width,
        num_pages=num_pages,
        num_slots=num_slots,
        extra=extra,
    )
