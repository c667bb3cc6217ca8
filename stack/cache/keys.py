"""Names for whole pages of token ids: key i stands for every token up to the end of page i.

Knows nothing of pages' memory. Each key is a digest of the one before it and of its page's tokens, so equal keys mean
equal prefixes and one dictionary holds a whole tree. A request hashes each of its tokens once.
"""

from array import array
from collections.abc import Iterable
from hashlib import blake2b

_TOKEN_BYTES = 4
_DIGEST_BYTES = 16


class PageKeys:
    """The keys of one growing request."""

    __slots__ = ("_lookahead", "_num_hashed", "_page_size", "_tokens", "keys")

    def __init__(self, page_size: int, token_ids: Iterable[int] = (), *, lookahead: int = 0) -> None:
        """`lookahead` tokens behind a page belong to its key: 1 with an MTP layer, whose entry i depends on i + 1."""
        self._page_size = page_size
        self._lookahead = lookahead
        self._tokens = array("I")
        self._num_hashed = 0
        self.keys: list[bytes] = []
        """Keys of all pages whose tokens (and lookahead) are known, in order."""
        self.extend(token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens that were given."""
        return self._num_hashed + len(self._tokens)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append tokens and hash the pages that they complete."""
        self._tokens.extend(array("I", token_ids))
        size, step = self._page_size + self._lookahead, self._page_size
        last = len(self._tokens) - size
        if last < 0:
            return
        octets, keys = self._tokens.tobytes(), self.keys
        previous = keys[-1] if keys else b""
        for start in range(0, last + 1, step):
            page = octets[start * _TOKEN_BYTES : (start + size) * _TOKEN_BYTES]
            previous = blake2b(previous + page, digest_size=_DIGEST_BYTES).digest()
            keys.append(previous)
        num_hashed = (last // step + 1) * step
        del self._tokens[:num_hashed]
        self._num_hashed += num_hashed
