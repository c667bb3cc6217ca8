"""A cache that shares nothing: every request gets its own pages and slots. The baseline of the decode ladder."""

from stack.cache.keys import PageKeys
from stack.cache.prefix import Hit, PrefixCache


class NoPrefix(PrefixCache):
    """`cache.prefix: none`."""

    def keys(self, token_ids: object) -> PageKeys:
        """Nothing is ever looked up, so nothing is hashed."""
        del token_ids
        return PageKeys(self.page_size)

    def _hit(self, keys: PageKeys) -> Hit:
        del keys
        return Hit([])
