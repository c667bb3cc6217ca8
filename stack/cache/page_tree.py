"""A tree of shared pages: one node a page, found by its key, evicted leaf by leaf, least recently used first.

Knows neither who allocates page numbers nor what recurrent states are, beyond the slot number that a node may carry.
Locking a node protects its ancestors, because only leaves are evicted.

Invariants: a node with locks, or with a child, is never evicted; `locks` of a node counts its own locks and its
children that are locked, so locking costs no more than the nodes that become locked.
"""

import heapq
from collections.abc import Iterator


class Node:
    """One page of one prefix."""

    __slots__ = ("depth", "in_tree", "key", "last_used", "locks", "num_children", "page", "parent", "pins", "slot")

    def __init__(self, key: bytes, page: int, parent: "Node | None") -> None:
        self.key = key
        self.page = page
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent else 0
        """Pages from the root to here, this one included."""
        self.in_tree = True
        self.locks = 0
        self.num_children = 0
        self.last_used = 0
        self.slot = 0
        """Slot of the recurrent state at the end of this page, 0 without one."""
        self.pins = 0
        """Users of that state."""

    def path_pages(self) -> list[int]:
        """Pages of the prefix that ends here, in order."""
        pages: list[int] = []
        node = self
        while node.parent:
            pages.append(node.page)
            node = node.parent
        pages.reverse()
        return pages


class PageTree:
    """All shared pages of one instance."""

    def __init__(self) -> None:
        self.root = Node(b"", 0, None)
        self._nodes: dict[bytes, Node] = {}
        self._leaves: list[tuple[int, int, Node]] = []
        self._num_locked = 0
        self._clock = 0
        self._pushes = 0

    @property
    def num_pages(self) -> int:
        """Pages in the tree."""
        return len(self._nodes)

    @property
    def num_evictable(self) -> int:
        """Pages that `evict` could return now: those that no lock protects."""
        return len(self._nodes) - self._num_locked

    def nodes(self) -> Iterator[Node]:
        """Every node but the root."""
        return iter(self._nodes.values())

    def get(self, key: bytes) -> Node | None:
        """The node of a key."""
        return self._nodes.get(key)

    def match(self, keys: list[bytes], start: int = 0) -> list[Node]:
        """The nodes of `keys[start:]` up to the first that is absent."""
        found: list[Node] = []
        get = self._nodes.get
        for position in range(start, len(keys)):
            node = get(keys[position])
            if node is None:
                break
            found.append(node)
        return found

    def insert(self, parent: Node, key: bytes, page: int) -> Node:
        """Add a page behind `parent`; the caller locks it before anything is evicted."""
        assert key not in self._nodes and parent.in_tree, "a page is inserted once, behind a page of the tree"
        node = Node(key, page, parent)
        self._nodes[key] = node
        parent.num_children += 1
        self._touch(node)
        return node

    def lock(self, node: Node) -> None:
        """Keep a node and its ancestors until `unlock`. Locking the root changes nothing."""
        while node.parent:
            node.locks += 1
            if node.locks > 1:
                return
            self._num_locked += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock`; what is no longer locked counts as used just now."""
        self._clock += 1
        while node.parent:
            assert node.locks > 0, "a page is unlocked more often than it was locked"
            node.locks -= 1
            if node.locks:
                return
            self._num_locked -= 1
            self._touch(node)
            node = node.parent

    def evict(self, count: int) -> list[Node]:
        """Remove up to `count` unlocked pages, least recently used leaves first; the caller frees pages and slots."""
        evicted: list[Node] = []
        while len(evicted) < count and self._leaves:
            last_used, _, node = heapq.heappop(self._leaves)
            if not self._is_evictable_leaf(node) or node.last_used != last_used:
                continue
            self._remove(node)
            evicted.append(node)
        return evicted

    def _remove(self, node: Node) -> None:
        del self._nodes[node.key]
        node.in_tree = False
        parent = node.parent
        assert parent
        parent.num_children -= 1
        if self._is_evictable_leaf(parent):
            self._push(parent)

    def _is_evictable_leaf(self, node: Node) -> bool:
        return node.in_tree and node.parent is not None and not node.locks and not node.num_children

    def _touch(self, node: Node) -> None:
        node.last_used = self._clock
        if self._is_evictable_leaf(node):
            self._push(node)

    def _push(self, node: Node) -> None:
        if len(self._leaves) > 2 * len(self._nodes) + 64:
            self._leaves = [(n.last_used, i, n) for i, n in enumerate(self.nodes()) if self._is_evictable_leaf(n)]
            heapq.heapify(self._leaves)
            self._pushes = len(self._nodes)
        self._pushes += 1
        heapq.heappush(self._leaves, (node.last_used, self._pushes, node))
