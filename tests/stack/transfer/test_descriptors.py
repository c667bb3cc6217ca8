import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.transfer.descriptors import num_runs, paired, strided


@given(st.permutations(range(40)), st.permutations(range(40)), st.integers(0, 40))
def test_pairs_survive_ordering_and_runs_join_only_neighbours_on_both_sides(local, remote, count):
    local, remote = list(local)[:count], list(remote)[:count]
    local_N, remote_N = paired(local, remote)
    pairs = list(zip(local_N.tolist(), remote_N.tolist(), strict=True))
    assert sorted(pairs) == sorted(zip(local, remote, strict=True))
    breaks = sum(b != (a[0] + 1, a[1] + 1) for a, b in itertools.pairwise(pairs))
    assert num_runs(local_N, remote_N) == (breaks + 1 if count else 0)


def test_one_run_on_both_sides_is_one_descriptor_in_any_order():
    assert num_runs(*paired([7, 5, 6], [12, 10, 11])) == 1


def test_a_run_on_one_side_alone_is_not_joined():
    assert num_runs(*paired([5, 6, 7], [1, 3, 5])) == 3


def test_unequal_lists_are_refused():
    with pytest.raises(ValueError, match="3 items cannot be written to 2 places"):
        paired([1, 2, 3], [1, 2])


def test_a_pool_is_one_row_whatever_its_size():
    assert strided(2**40, 65536, 100000, 1).tolist() == [[2**40, 65536, 1, 65536, 100000]]
