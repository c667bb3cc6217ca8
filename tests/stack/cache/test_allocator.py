"""Page and slot numbers: ascending runs, exact accounts, no number twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.cache import RunAllocator, merged_runs


def test_a_fresh_allocator_gives_one_run_and_never_the_sink():
    pages = RunAllocator(10)
    assert pages.allocate(4) == [1, 2, 3, 4]
    assert pages.allocate(6) == [5, 6, 7, 8, 9, 10]
    assert pages.allocate(1) is None


def test_a_whole_run_is_preferred_to_scattered_numbers():
    pages = RunAllocator(12)
    pages.allocate(12)
    pages.free([2, 4, 6, 7, 8])
    assert pages.allocate(3) == [6, 7, 8]
    assert pages.allocate(2) == [2, 4]


def test_neighbours_that_return_become_one_run_again():
    pages = RunAllocator(9)
    pages.allocate(9)
    for number in (1, 3, 5, 7, 9, 2, 4, 6, 8):
        pages.free([number])
    assert merged_runs(pages.allocate(9)) == [(1, 9)]


def test_too_large_a_wish_changes_nothing():
    pages = RunAllocator(3)
    assert pages.allocate(4) is None
    assert (pages.num_free, pages.num_used) == (3, 0)


@pytest.mark.parametrize("wrong", [[2, 2], [3], [0], [99], [1, 3]])
def test_a_double_free_is_caught_before_any_change(wrong):
    pages = RunAllocator(4, "slot")
    pages.allocate(2)
    with pytest.raises(AssertionError, match="was not handed out"):
        pages.free(wrong)
    assert pages.num_used == 2


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60))
def test_every_number_is_free_or_used_and_never_both(steps):
    pages, held = RunAllocator(40), []
    for is_allocation, size in steps:
        if is_allocation:
            held += pages.allocate(size) or []
        else:
            pages.free(held[:size])
            held = held[size:]
        assert len(held) == len(set(held)) == pages.num_used == 40 - pages.num_free
        assert [n for n in range(41) if pages.is_used(n)] == sorted(held)
    pages.free(held)
    assert merged_runs(pages.allocate(40)) == [(1, 40)]
