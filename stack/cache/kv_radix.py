"""A prefix cache for decode instances that keeps KV pages and no recurrent state.

A decode instance is sent every request's recurrent state, one block of one size whatever the prompt. A hit here need
only spare pages from travelling again, so it may end at any page boundary, the prompt's end included. (A prefill
instance resumes computing from its hit, so `hybrid_radix` may end a hit only where a state was kept.)

N requests with a shared prefix of Lp tokens and suffixes of Ls use Lp + N x Ls tokens of pages, up to rounding.
"""

from stack.cache.keys import PageKeys
from stack.cache.prefix import Hit
from stack.cache.published import SharingCache


class KvRadix(SharingCache):
    """`cache.prefix: kv_radix`."""

    def _hit(self, keys: PageKeys) -> Hit:
        return Hit(self._tree.match(keys.keys))
