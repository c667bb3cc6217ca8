"""Random lives of requests: whatever happens, plans are sound and every page and slot comes back."""

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
