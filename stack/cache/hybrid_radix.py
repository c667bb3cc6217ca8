"""A prefix cache for instances that compute prompts: KV pages, and recurrent states at some page boundaries.

Linear attention can resume only from its state, so a hit ends at the deepest page whose state was kept, and at least
one token of the prompt stays to be computed. States are kept at chunk ends and where a prompt leaves the tree, because
the next prompt with the same beginning leaves it there too. A state occupies a slot like a request's own; the least
recently used one makes room.

Invariants: a state is kept only behind a page in the tree; a state that a lease may still copy from is never evicted.
"""

from collections import OrderedDict

from stack.cache.keys import PageKeys
from stack.cache.lease import Lease
from stack.cache.page_tree import Node
from stack.cache.prefix import Hit
from stack.cache.published import SharingCache


class HybridRadix(SharingCache):
    """`cache.prefix: hybrid_radix`."""

    def __init__(
        self, *, page_size: int, num_pages: int, num_slots: int, lookahead: int = 0, max_snapshots: int
    ) -> None:
        """At most `max_snapshots` of the slots hold states for later prompts."""
        super().__init__(page_size=page_size, num_pages=num_pages, num_slots=num_slots, lookahead=lookahead)
        self._max_snapshots = max_snapshots
        self._states: OrderedDict[Node, None] = OrderedDict()
        self._num_reserved = 0

    def reserve_snapshot(self, lease: Lease) -> int:
        """A slot for the state after the lease's next publication; makes room among the oldest states."""
        if self._num_states + self._num_reserved >= self._max_snapshots or not self.slots.num_free:
            if not self._num_evictable_states:
                return 0
            self._evict_states(1)
        taken = self.slots.allocate(1)
        if taken is None:
            return 0
        lease.snapshot_slots += taken
        self._num_reserved += 1
        return taken[0]

    def publish(self, lease: Lease, num_tokens: int, *, repoint: bool = True, snapshot: int = 0) -> list[int]:
        """See `PrefixCache.publish`; a snapshot of a page that already has a state, or no key yet, is dropped."""
        changed = super().publish(lease, num_tokens, repoint=repoint)
        if snapshot:
            self._keep(lease, num_tokens, snapshot)
        return changed

    def release(self, lease: Lease) -> None:
        """End a lease; snapshots it did not publish are dropped."""
        self._num_reserved -= len(lease.snapshot_slots)
        super().release(lease)

    def chunk_end(self, lease: Lease, start: int, most: int) -> int:
        """The branching point if the chunk would pass it, the prompt's end, or the last page boundary within reach."""
        if start < lease.branch_tokens < most:
            return lease.branch_tokens
        if most >= lease.keys.num_tokens:
            return most
        aligned = most - most % self.page_size
        return aligned if aligned > start else most

    def _hit(self, keys: PageKeys) -> Hit:
        nodes = self._tree.match(keys.keys)
        num_matched = len(nodes)
        most = max(keys.num_tokens - 1, 0) // self.page_size
        del nodes[most:]
        while nodes and not nodes[-1].slot:
            nodes.pop()
        branch = min(num_matched, most)
        restore = nodes[-1] if nodes else None
        if restore:
            self._states.move_to_end(restore)
        return Hit(nodes, restore, branch * self.page_size if branch > len(nodes) else 0)

    def _keep(self, lease: Lease, num_tokens: int, slot: int) -> None:
        lease.snapshot_slots.remove(slot)
        self._num_reserved -= 1
        node = lease.tip
        is_new = node.depth * self.page_size == num_tokens and node.parent is not None and not node.slot
        if not is_new:
            self.slots.free([slot])
            return
        node.slot = slot
        self._states[node] = None

    @property
    def _num_states(self) -> int:
        return len(self._states)

    @property
    def _num_evictable_states(self) -> int:
        return sum(1 for node in self._states if not node.pins)

    def _evict_states(self, count: int) -> None:
        idle = [node for node in self._states if not node.pins][:count]
        for node in idle:
            del self._states[node]
            self.slots.free([node.slot])
            node.slot = 0

    def _forget(self, nodes: list[Node]) -> None:
        for node in nodes:
            if node.slot:
                del self._states[node]
                self.slots.free([node.slot])
                node.slot = 0
