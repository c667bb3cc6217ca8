"""The prefill cache: hits only where a state exists, states at chunk ends and branching points."""

from stack.cache import HybridRadix

P = 4


def cache_of(num_pages=60, num_slots=8, max_snapshots=4, **options):
    return HybridRadix(page_size=P, num_pages=num_pages, num_slots=num_slots, max_snapshots=max_snapshots, **options)


def admitted(cache, prompt):
    lease = cache.admit(cache.keys(prompt), num_tokens=len(prompt))
    assert lease is not None
    return lease


def prefilled(cache, prompt, chunk):
    """Compute a prompt in chunks as a scheduler would, keeping a state wherever one is worth keeping."""
    lease, done = admitted(cache, prompt), None
    done = lease.hit_tokens
    ends = []
    while done < len(prompt):
        done = cache.chunk_end(lease, done, min(done + chunk, len(prompt)))
        ends.append(done)
        snapshot = cache.reserve_snapshot(lease) if done % P == 0 else 0
        cache.publish(lease, done, snapshot=snapshot)
    return lease, ends


def test_pages_without_a_state_are_no_hit():
    cache = cache_of()
    lease = admitted(cache, range(12))
    cache.publish(lease, 12)
    cache.release(lease)
    again = admitted(cache, range(12))
    assert (again.hit_tokens, again.restore_slot, again.branch_tokens) == (0, 0, 8)


def test_a_hit_ends_at_the_deepest_state_and_names_its_slot():
    cache = cache_of()
    lease, ends = prefilled(cache, range(18), chunk=8)
    assert ends == [8, 16, 18]
    again = admitted(cache, range(18))
    assert again.hit_tokens == 16 and again.restore_slot not in (0, lease.slot, again.slot)
    assert again.pages[:4] == lease.pages[:4]


def test_one_token_is_always_left_to_compute():
    cache = cache_of()
    prefilled(cache, range(16), chunk=8)
    assert admitted(cache, range(16)).hit_tokens == 8
    assert admitted(cache, range(17)).hit_tokens == 16


def test_a_branching_point_gets_a_state_for_the_next_prompt():
    cache = cache_of()
    prefilled(cache, range(30), chunk=16)
    second, ends = prefilled(cache, [*range(24), 90, 91, 92], chunk=16)
    assert (second.hit_tokens, second.branch_tokens, ends) == (16, 24, [24, 27])
    third = admitted(cache, [*range(24), 80, 81])
    assert third.hit_tokens == 24 and third.branch_tokens == 0


def test_pages_computed_again_on_the_way_to_a_branch_are_stored_once():
    cache = cache_of()
    prefilled(cache, range(30), chunk=16)
    used = cache.pages.num_used
    prefilled(cache, [*range(24), 90, 91, 92], chunk=16)
    assert cache.pages.num_used == used + 1


def test_chunks_end_at_pages_except_the_last():
    cache = cache_of()
    lease = admitted(cache, range(30))
    assert cache.chunk_end(lease, 0, 10) == 8
    assert cache.chunk_end(lease, 8, 11) == 11, "a chunk within one page cannot end at a boundary"
    assert cache.chunk_end(lease, 24, 30) == 30


def test_the_oldest_state_makes_room():
    cache = cache_of(max_snapshots=2)
    for first in (0, 100, 200):
        lease, _ = prefilled(cache, range(first, first + 9), chunk=8)
        cache.release(lease)
    assert admitted(cache, range(0, 9)).hit_tokens == 0
    assert admitted(cache, range(200, 209)).hit_tokens == 8
    assert cache.slot_counts().cached == 2


def test_a_state_in_use_does_not_make_room():
    cache = cache_of(max_snapshots=1)
    lease, _ = prefilled(cache, range(9), chunk=8)
    cache.release(lease)
    user = admitted(cache, range(9))
    assert cache.reserve_snapshot(user) == 0
    cache.release(user)
    other = admitted(cache, range(50, 59))
    assert cache.reserve_snapshot(other) > 0


def test_states_give_way_to_requests():
    cache = cache_of(num_slots=3, max_snapshots=2)
    lease, _ = prefilled(cache, range(17), chunk=8)
    cache.release(lease)
    assert cache.slot_counts().cached == 2
    leases = [admitted(cache, range(base, base + 5)) for base in (100, 200, 300)]
    assert cache.slot_counts().cached == 0 and len({lease.slot for lease in leases}) == 3
    assert cache.admit(cache.keys(range(5)), num_tokens=5) is None


def test_an_evicted_page_takes_its_state_along():
    cache = cache_of(num_pages=4)
    lease, _ = prefilled(cache, range(9), chunk=8)
    cache.release(lease)
    admitted(cache, range(100, 116))
    assert cache.slot_counts().cached == 0 and cache.slot_counts().leased == 1


def test_an_aborted_request_returns_its_unpublished_snapshot():
    cache = cache_of()
    lease = admitted(cache, range(20))
    assert cache.reserve_snapshot(lease) > 0
    cache.release(lease)
    assert cache.slot_counts().free == 8 and cache.page_counts().free == 60


def test_a_second_state_of_the_same_page_is_dropped():
    cache = cache_of()
    first, second = admitted(cache, range(9)), admitted(cache, range(9))
    for lease in (first, second):
        cache.publish(lease, 8, snapshot=cache.reserve_snapshot(lease))
    assert cache.slot_counts().cached == 1 and cache.slot_counts().leased == 2


def test_a_published_copy_of_pages_still_being_sent_is_kept():
    cache = cache_of()
    first, second = admitted(cache, range(9)), admitted(cache, range(9))
    cache.publish(first, 8, repoint=False)
    old = list(second.pages)
    assert cache.publish(second, 8, repoint=False) == []
    assert second.pages == old and second.private_pages == old


def test_a_flush_drops_pages_and_states():
    cache = cache_of()
    lease, _ = prefilled(cache, range(17), chunk=8)
    cache.release(lease)
    cache.flush()
    assert cache.page_counts().free == 60 and cache.slot_counts().free == 8
