"""Random lives of requests over both prefix caches, with every account checked after each step.

The model writes, for each page and slot, which tokens its bytes would hold; a hit must find exactly what it claims.
Each cache lives through 5,000 transitions in CI and 200,000 by night.
"""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stack.cache import HybridRadix, KvRadix

P, PAGES, SLOTS = 4, 48, 9
SHORT = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
LONG = settings(SHORT, max_examples=4000, stateful_step_count=50)

suffixes = st.one_of(st.just([]), st.lists(st.integers(0, 2), max_size=14))


class Live:
    """What the test knows of one request."""

    def __init__(self, prompt):
        self.tokens = list(prompt)
        self.num_prompt = len(prompt)
        self.computed = 0
        self.lease = None
        self.host = {}
        self.waits = False


class CacheLife(RuleBasedStateMachine):
    """Admit, compute, publish, grow, give way, return, end: in any order that an engine could produce."""

    def __init__(self):
        super().__init__()
        self.cache = None
        self.live = []
        self.page_holds = {}
        self.slot_holds = {}
        self.seen = [[0, 1, 2, 0, 1, 2, 1, 1, 0, 0, 2, 2, 1]]

    @initialize(lookahead=st.integers(0, 1))
    def start(self, lookahead):
        self.cache = self.new_cache(lookahead)

    def new_cache(self, lookahead):
        raise NotImplementedError

    def computing(self):
        return [r for r in self.live if not r.waits and r.computed < r.num_prompt]

    def running(self):
        return [r for r in self.live if not r.waits and r.computed >= r.num_prompt]

    def leaving(self):
        return [r for r in self.live if r.waits and not r.lease.is_parked]

    def parked(self):
        return [r for r in self.live if r.lease.is_parked]

    @rule(data=st.data(), suffix=suffixes, reserve=st.integers(0, 9))
    def admit(self, data, suffix, reserve):
        prefix = data.draw(st.sampled_from(self.seen))
        cut = data.draw(st.one_of(st.just(len(prefix)), st.integers(0, len(prefix))))
        request = Live([*prefix[:cut], *suffix][:40] or [0])
        before = self.accounts()
        keys = self.cache.keys(request.tokens)
        request.lease = self.cache.admit(keys, num_tokens=len(request.tokens) + reserve)
        if request.lease is None:
            assert self.accounts() == before
            return
        self.check_hit(request)
        request.computed = request.lease.hit_tokens
        self.live.append(request)
        self.seen = [*self.seen[-5:], request.tokens]

    @precondition(computing)
    @rule(data=st.data(), count=st.integers(1, 16), keep=st.booleans(), repoint=st.booleans())
    def compute(self, data, count, keep, repoint):
        """A prefill chunk, or an arriving transfer."""
        request = data.draw(st.sampled_from(self.computing()))
        lease = request.lease
        end = self.cache.chunk_end(lease, request.computed, min(request.computed + count, request.num_prompt))
        assert request.computed < end <= request.num_prompt
        self.write(request, end)
        snapshot = self.cache.reserve_snapshot(lease) if keep and end % P == 0 else 0
        if snapshot:
            self.slot_holds[snapshot] = tuple(request.tokens[:end])
        self.publish(request, repoint, snapshot)

    @precondition(computing)
    @rule(data=st.data())
    def lose_a_snapshot(self, data):
        """The step that should have filled it never ran; the request goes on, or ends."""
        request = data.draw(st.sampled_from(self.computing()))
        if self.cache.reserve_snapshot(request.lease):
            self.cache.release(request.lease)
            self.live.remove(request)

    @precondition(running)
    @rule(
        data=st.data(),
        tokens=st.lists(st.integers(0, 2), min_size=1, max_size=8),
        accepted=st.integers(1, 8),
        repoint=st.sampled_from([None, False, True]),
    )
    def decode(self, data, tokens, accepted, repoint):
        """A verify has room for all its tokens and commits some."""
        request = data.draw(st.sampled_from(self.running()))
        if self.cache.extend(request.lease, request.computed + len(tokens)) is None:
            return
        committed = tokens[:accepted]
        request.tokens += committed
        request.lease.keys.extend(committed)
        self.write(request, request.computed + len(committed))
        if repoint is not None:
            self.publish(request, repoint, 0)

    @precondition(running)
    @rule(data=st.data(), spare=st.integers(0, 6))
    def trim(self, data, spare):
        request = data.draw(st.sampled_from(self.running()))
        self.cache.trim(request.lease, request.computed + spare)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), is_shared=st.booleans())
    def end(self, data, is_shared):
        """Finished, aborted, or its transfer failed: whatever it was doing."""
        request = data.draw(st.sampled_from(self.live))
        if is_shared and not request.waits:
            self.publish(request, False, 0)
        self.cache.release(request.lease)
        self.live.remove(request)

    @precondition(running)
    @rule(data=st.data())
    def begin_to_give_way(self, data):
        request = data.draw(st.sampled_from(self.running()))
        indices = self.cache.begin_suspend(request.lease, request.computed)
        request.host = {index: self.page_holds.get(request.lease.pages[index]) for index in indices}
        request.waits = True

    @precondition(leaving)
    @rule(data=st.data())
    def finish_giving_way(self, data):
        self.cache.finish_suspend(data.draw(st.sampled_from(self.leaving())).lease)

    @precondition(parked)
    @rule(data=st.data(), reserve=st.integers(0, 6))
    def come_back(self, data, reserve):
        request = data.draw(st.sampled_from(self.parked()))
        before = self.accounts()
        indices = self.cache.resume(request.lease, num_tokens=request.computed + reserve)
        if indices is None:
            assert self.accounts() == before
            return
        for index in indices:
            self.page_holds[request.lease.pages[index]] = request.host[index]
        request.waits = False
        self.check_rows(request, request.computed)

    @precondition(lambda self: self.cache.page_counts().evictable > 8)
    @rule()
    def flush(self):
        self.cache.flush()
        assert self.cache.page_counts().evictable == 0

    # -- the model of bytes --------------------------------------------------------------------------------------
    def write(self, request, end):
        for index in range(request.computed // P, -(-end // P)):
            page = request.lease.pages[index]
            assert index >= request.lease.num_shared, "a shared page is never written"
            self.page_holds[page] = tuple(request.tokens[: min(end, (index + 1) * P)])
        request.computed = end

    def publish(self, request, repoint, snapshot):
        self.cache.publish(request.lease, request.computed, repoint=repoint, snapshot=snapshot)
        self.check_rows(request, request.computed)

    def check_hit(self, request):
        lease = request.lease
        assert lease.hit_tokens % P == 0 and lease.hit_tokens <= len(request.tokens)
        self.check_rows(request, lease.hit_tokens)
        if isinstance(self.cache, HybridRadix) and lease.hit_tokens:
            assert self.slot_holds[lease.restore_slot] == tuple(request.tokens[: lease.hit_tokens])
            assert lease.hit_tokens < len(request.tokens)
        self.slot_holds[lease.slot] = None

    def check_rows(self, request, end):
        """Every committed row of a request lies where its page list says."""
        for index in range(-(-end // P)):
            want = tuple(request.tokens[: min(end, (index + 1) * P)])
            held = self.page_holds.get(request.lease.pages[index], ())
            assert held[: len(want)] == want

    # -- accounts ------------------------------------------------------------------------------------------------
    def accounts(self):
        return self.cache.page_counts(), self.cache.slot_counts()

    @precondition(lambda self: self.cache is not None)
    @invariant()
    def what_is_free_is_overwritten(self):
        self.page_holds = {page: held for page, held in self.page_holds.items() if self.cache.pages.is_used(page)}
        self.slot_holds = {slot: held for slot, held in self.slot_holds.items() if self.cache.slots.is_used(slot)}

    @precondition(lambda self: self.cache is not None)
    @invariant()
    def every_page_has_one_owner(self):
        nodes = list(self.cache._tree.nodes())
        owned = [page for request in self.live for page in request.lease.private_pages] + [n.page for n in nodes]
        assert len(owned) == len(set(owned)) == self.cache.pages.num_used
        assert all(self.cache.pages.is_used(page) for page in owned)
        counts = self.cache.page_counts()
        assert counts.free + counts.cached + counts.leased == counts.total == PAGES

    @precondition(lambda self: self.cache is not None)
    @invariant()
    def every_slot_has_one_owner(self):
        owned = [slot for request in self.live for slot in request.lease.slots + request.lease.snapshot_slots]
        owned += [node.slot for node in self.cache._tree.nodes() if node.slot]
        assert len(owned) == len(set(owned)) == self.cache.slots.num_used
        counts = self.cache.slot_counts()
        assert counts.free + counts.cached + counts.leased == counts.total == SLOTS

    @precondition(lambda self: self.cache is not None)
    @invariant()
    def locks_are_exact_and_protect_whole_paths(self):
        locks, locked = Counter(), set()
        for request in self.live:
            node = request.lease.tip
            assert node.parent is None or node.in_tree
            locks[node] += 1
            while node.parent:
                locked.add(node)
                node = node.parent
        for node in list(locked):
            locks[node.parent] += 1
        nodes = list(self.cache._tree.nodes())
        assert all(node.locks == locks[node] for node in nodes)
        assert self.cache.page_counts().evictable == len(nodes) - len(locked)

    @precondition(lambda self: self.cache is not None)
    @invariant()
    def shared_pages_of_a_request_are_the_trees_or_its_own_copies(self):
        for request in self.live:
            lease, path = request.lease, request.lease.tip.path_pages()
            assert len(path) == lease.num_shared
            for index, page in enumerate(path):
                assert (lease.pages[index] == page) == (index not in lease.duplicates)

    @precondition(lambda self: self.cache is not None)
    @invariant()
    def a_state_that_may_be_restored_is_not_evicted(self):
        for request in self.live:
            lease = request.lease
            if lease.pinned:
                assert self.slot_holds[lease.restore_slot] == tuple(request.tokens[: lease.hit_tokens])

    def teardown(self):
        if self.cache is None:
            return
        for request in self.live:
            self.cache.release(request.lease)
        self.cache.flush()
        assert self.cache.page_counts().free == PAGES
        assert self.cache.slot_counts().free == SLOTS


class KvLife(CacheLife):
    """On a decode instance."""

    def new_cache(self, lookahead):
        return KvRadix(page_size=P, num_pages=PAGES, num_slots=SLOTS, lookahead=lookahead)


class HybridLife(CacheLife):
    """On an instance that computes prompts."""

    def new_cache(self, lookahead):
        return HybridRadix(page_size=P, num_pages=PAGES, num_slots=SLOTS, lookahead=lookahead, max_snapshots=3)


class TestKvLife(KvLife.TestCase):
    settings = SHORT


class TestHybridLife(HybridLife.TestCase):
    settings = SHORT


@pytest.mark.nightly
@pytest.mark.timeout(3600)
class TestKvLifeLong(KvLife.TestCase):
    settings = LONG


@pytest.mark.nightly
@pytest.mark.timeout(3600)
class TestHybridLifeLong(HybridLife.TestCase):
    settings = LONG
