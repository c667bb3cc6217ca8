"""What one request holds of the pools. Integers only; written by the prefix cache alone, read by everybody."""

from dataclasses import dataclass, field

from stack.cache.keys import PageKeys
from stack.cache.page_tree import Node


@dataclass(slots=True, eq=False)
class Lease:
    """Pages and slots of one request, from `admit` to `release`.

    `pages[:num_shared]` are in the cache's tree and locked there, except those whose index is in `duplicates`: of these
    the tree holds another page with the same rows. Everything else is the request's own.
    """

    keys: PageKeys
    """Extend it with committed tokens; `publish` names pages by it."""
    tip: Node
    pages: list[int] = field(default_factory=list)
    """Physical pages in order."""
    slots: list[int] = field(default_factory=list)
    """State slots; the first is the live one."""
    hit_tokens: int = 0
    """Prompt tokens, a multiple of the page size, that need neither be computed nor transferred."""
    restore_slot: int = 0
    """Slot with the state after `hit_tokens`, to copy into `slot` before the first chunk; 0: start from zeros."""
    branch_tokens: int = 0
    """Where this prompt leaves the tree, when that lies behind `hit_tokens`: a state kept there serves the next one."""
    num_shared: int = 0
    duplicates: list[int] = field(default_factory=list)
    snapshot_slots: list[int] = field(default_factory=list)
    """Slots reserved for snapshots that were not published yet."""
    pinned: Node | None = None
    saved: list[int] = field(default_factory=list)
    """While it gives way: indices of the pages whose bytes lie in host memory."""
    is_parked: bool = False
    is_open: bool = True

    @property
    def slot(self) -> int:
        """The live state slot."""
        return self.slots[0]

    @property
    def private_pages(self) -> list[int]:
        """Pages that return to the free list when the lease ends."""
        return [self.pages[index] for index in self.duplicates] + self.pages[self.num_shared :]
