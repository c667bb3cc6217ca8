"""Publication of a request's whole pages into the tree, as every sharing cache does it."""

from stack.cache.lease import Lease
from stack.cache.prefix import PrefixCache


class SharingCache(PrefixCache):
    """A prefix cache with pages in its tree."""

    def publish(self, lease: Lease, num_tokens: int, *, repoint: bool = True, snapshot: int = 0) -> list[int]:
        """See `PrefixCache.publish`. At most the pages whose tokens `lease.keys` was given are shared."""
        del snapshot
        end = min(num_tokens // self.page_size, len(lease.keys.keys))
        assert end <= len(lease.pages), "a request publishes pages it has"
        tip, changed = lease.tip, []
        for index in range(lease.num_shared, end):
            key = lease.keys.keys[index]
            node = self._tree.get(key)
            if node is None:
                node = self._tree.insert(tip, key, lease.pages[index])
            elif repoint:
                self.pages.free([lease.pages[index]])
                lease.pages[index] = node.page
                changed.append(index)
            else:
                lease.duplicates.append(index)
            tip = node
        if tip is not lease.tip:
            self._tree.lock(tip)
            self._tree.unlock(lease.tip)
            lease.tip, lease.num_shared = tip, end
        return changed
