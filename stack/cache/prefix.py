"""The contract of a prefix cache, and the accounts that every one of them shares.

A cache owns the numbers of all pages and slots of an instance. A request's life is `admit`, any number of `extend` and
`publish`, `begin_suspend`, `finish_suspend` and `resume` where it gives way, and `release`. Nothing here touches bytes:
a page or slot that a call gives back may be handed out by the next call, so call `release`, `finish_suspend` and a
repointing `publish` only when no step and no transfer that knows the old numbers can still read or write them.

Invariants: free + cached + leased == total for pages and for slots; a locked page is never evicted; a call that returns
None has changed nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from stack.cache.allocator import RunAllocator
from stack.cache.keys import PageKeys
from stack.cache.lease import Lease
from stack.cache.page_tree import Node, PageTree


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Where the pages, or the slots, of an instance are."""

    free: int
    cached: int
    """Held by the cache, locked or not."""
    evictable: int
    """Those of `cached` that can be had back at once."""
    leased: int
    """Held by requests alone."""
    total: int


@dataclass(frozen=True, slots=True)
class Hit:
    """The part of a prompt that a cache can serve."""

    nodes: list[Node]
    restore: Node | None = None
    branch_tokens: int = 0


class PrefixCache(ABC):
    """Who holds which pages and slots, and whose may be shared."""

    def __init__(self, *, page_size: int, num_pages: int, num_slots: int, lookahead: int = 0) -> None:
        """Pages 1 to `num_pages` and slots 1 to `num_slots`. `lookahead`: see `PageKeys`."""
        self.page_size = page_size
        self.pages = RunAllocator(num_pages, "page")
        self.slots = RunAllocator(num_slots, "slot")
        self.leases: set[Lease] = set()
        self._lookahead = lookahead
        self._tree = PageTree()

    def keys(self, token_ids: Iterable[int] | bytes) -> PageKeys:
        """The page keys of a prompt, given as ids or packed.

        Hashing is the costly part of admission: do it once, when a request arrives.
        """
        return PageKeys(self.page_size, token_ids, lookahead=self._lookahead)

    def admit(self, keys: PageKeys, *, num_tokens: int, num_slots: int = 1) -> Lease | None:
        """Lease pages for `num_tokens` (prompt and reserve) and `num_slots` slots; None when they cannot be had.

        What the cache already holds is locked and shared; only the rest is allocated, evicting what nobody uses. The
        slots' bytes are whatever their last owner left: copy `restore_slot` into the first, or zero it.
        """
        hit = self._hit(keys)
        lease = Lease(keys=keys, tip=hit.nodes[-1] if hit.nodes else self._tree.root)
        self._hold(lease, hit)
        num_private = self._num_pages(num_tokens) - len(hit.nodes)
        if not self._can_allocate(num_private, num_slots):
            self._let_go(lease)
            return None
        lease.pages = [node.page for node in hit.nodes] + self._take_pages(num_private)
        lease.slots = self._take_slots(num_slots)
        lease.num_shared = len(hit.nodes)
        lease.hit_tokens = len(hit.nodes) * self.page_size
        lease.branch_tokens = hit.branch_tokens
        self.leases.add(lease)
        return lease

    def extend(self, lease: Lease, num_tokens: int) -> list[int] | None:
        """Grow to hold `num_tokens`; returns the pages that were appended, or None when they cannot be had."""
        missing = self._num_pages(num_tokens) - len(lease.pages)
        if missing <= 0:
            return []
        if not self._can_allocate(missing, 0):
            return None
        pages = self._take_pages(missing)
        lease.pages.extend(pages)
        return pages

    def trim(self, lease: Lease, num_tokens: int) -> None:
        """Give back the pages behind `num_tokens`: the reserve that a request did not use."""
        keep = max(self._num_pages(num_tokens), lease.num_shared)
        self.pages.free(lease.pages[keep:])
        del lease.pages[keep:]

    def release(self, lease: Lease) -> None:
        """End a lease: unlock what is shared, free the rest. What should stay cached was published before."""
        assert lease.is_open, "a lease is released once"
        lease.is_open = False
        self.leases.discard(lease)
        self.pages.free(lease.private_pages)
        self.slots.free(lease.slots + lease.snapshot_slots)
        self._let_go(lease)

    def flush(self) -> int:
        """Drop every cached page and state that no lease protects; returns the number of pages dropped."""
        return self._evict(self._tree.num_evictable)

    def publish(self, lease: Lease, num_tokens: int, *, repoint: bool = True, snapshot: int = 0) -> list[int]:
        """Share the whole pages of the first `num_tokens`, which must be committed: their rows are never written again.

        Where the tree already has such a page, `repoint` frees the request's own and takes the tree's: the indices
        that changed are returned, and the device's page table must learn them before the next step. Without `repoint`
        the request keeps its copy until the end. `snapshot` is a slot from `reserve_snapshot` that now holds the state
        after `num_tokens`. A cache that shares nothing returns no indices.
        """
        del lease, num_tokens, repoint, snapshot
        return []

    def reserve_snapshot(self, lease: Lease) -> int:
        """A slot to copy the live state into, for `publish`; 0 when this cache keeps no states or none can be had."""
        del lease
        return 0

    def chunk_end(self, lease: Lease, start: int, most: int) -> int:
        """Where a prefill chunk from `start` that may reach `most` should end to leave a state worth keeping."""
        del lease, start
        return most

    def begin_suspend(self, lease: Lease, num_tokens: int) -> list[int]:
        """The request gives way after `num_tokens`: indices of the pages to copy to host memory, with its slot.

        Nothing is given back yet. Pages that other requests hold too stay locked and are not copied.
        """
        self.trim(lease, num_tokens)
        boundary = lease.tip
        while boundary.parent and boundary.locks == 1:
            boundary = boundary.parent
        lease.saved = list(range(boundary.depth, len(lease.pages)))
        return lease.saved

    def finish_suspend(self, lease: Lease) -> None:
        """The copies are done: give the slots and the copied pages back."""
        assert not lease.is_parked, "a lease is suspended once"
        kept = lease.saved[0] if lease.saved else len(lease.pages)
        boundary = lease.tip
        while boundary.depth > kept:
            assert boundary.parent
            boundary = boundary.parent
        self._tree.lock(boundary)
        self.pages.free(lease.private_pages)
        self.slots.free(lease.slots)
        self._unpin(lease)
        self._tree.unlock(lease.tip)
        lease.pages, lease.slots, lease.duplicates = boundary.path_pages(), [], []
        lease.tip, lease.num_shared, lease.is_parked = boundary, boundary.depth, True

    def resume(self, lease: Lease, *, num_tokens: int, num_slots: int = 1) -> list[int] | None:
        """Lease pages and slots again; returns the indices whose bytes must come back from host memory, or None.

        Saved pages that the cache still holds are shared again instead of copied.
        """
        assert lease.is_parked, "only a suspended lease resumes"
        found = self._tree.match(lease.keys.keys, lease.num_shared)[: len(lease.saved)]
        tip = found[-1] if found else lease.tip
        self._tree.lock(tip)
        num_private = self._num_pages(num_tokens) - lease.num_shared - len(found)
        if not self._can_allocate(num_private, num_slots):
            self._tree.unlock(tip)
            return None
        self._tree.unlock(lease.tip)
        lease.pages += [node.page for node in found] + self._take_pages(num_private)
        lease.slots = self._take_slots(num_slots)
        restored = lease.saved[len(found) :]
        lease.tip, lease.num_shared, lease.saved, lease.is_parked = tip, tip.depth, [], False
        return restored

    def page_counts(self) -> PoolCounts:
        """Where all pages are."""
        cached, free = self._tree.num_pages, self.pages.num_free
        leased = self.pages.num_used - cached
        return PoolCounts(free, cached, self._tree.num_evictable, leased, self.pages.total)

    def slot_counts(self) -> PoolCounts:
        """Where all slots are."""
        cached, free = self._num_states, self.slots.num_free
        return PoolCounts(free, cached, self._num_evictable_states, self.slots.num_used - cached, self.slots.total)

    @abstractmethod
    def _hit(self, keys: PageKeys) -> Hit:
        """What of a prompt the cache can serve; changes nothing."""

    @property
    def _num_states(self) -> int:
        return 0

    @property
    def _num_evictable_states(self) -> int:
        return 0

    def _evict_states(self, count: int) -> None:
        assert not count, "this cache holds no states"

    def _forget(self, nodes: list[Node]) -> None:
        assert not any(node.slot for node in nodes), "this cache holds no states"

    def _num_pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def _can_allocate(self, num_pages: int, num_slots: int) -> bool:
        has_pages = num_pages <= self.pages.num_free + self._tree.num_evictable
        return has_pages and num_slots <= self.slots.num_free + self._num_evictable_states

    def _take_pages(self, count: int) -> list[int]:
        if count <= 0:
            return []
        self._evict(count - self.pages.num_free)
        pages = self.pages.allocate(count)
        assert pages is not None
        return pages

    def _take_slots(self, count: int) -> list[int]:
        self._evict_states(max(count - self.slots.num_free, 0))
        slots = self.slots.allocate(count)
        assert slots is not None
        return slots

    def _evict(self, count: int) -> int:
        nodes = self._tree.evict(count) if count > 0 else []
        self._forget(nodes)
        self.pages.free(node.page for node in nodes)
        return len(nodes)

    def _hold(self, lease: Lease, hit: Hit) -> None:
        self._tree.lock(lease.tip)
        if hit.restore:
            hit.restore.pins += 1
            lease.pinned, lease.restore_slot = hit.restore, hit.restore.slot

    def _let_go(self, lease: Lease) -> None:
        self._unpin(lease)
        self._tree.unlock(lease.tip)

    def _unpin(self, lease: Lease) -> None:
        if lease.pinned:
            lease.pinned.pins -= 1
            lease.pinned = None
