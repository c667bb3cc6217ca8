"""Names for whole pages of token ids: key i stands for every token up to the end of page i.

Knows nothing of pages' memory. A key is a digest of all tokens so far, read off one running hash, so equal keys mean
equal prefixes and one dictionary holds a whole tree. A request hashes each of its tokens once.
"""

from collections.abc import Iterable
from hashlib import sha256

from stack.core.tokens import TOKEN_BYTES, pack_tokens

_DIGEST_BYTES = 16


class PageKeys:
    """The keys of one growing request."""

    __slots__ = ("_hash", "_num_hashed", "_page_bytes", "_rest", "_to_first", "keys")

    def __init__(self, page_size: int, token_ids: Iterable[int] | bytes = (), *, lookahead: int = 0) -> None:
        """`lookahead` tokens behind a page belong to its key: 1 with an MTP layer, whose entry i depends on i + 1.

        Tokens are ids, or the bytes that `pack_tokens` makes of them.
        """
        self._page_bytes = page_size * TOKEN_BYTES
        self._to_first = self._page_bytes + lookahead * TOKEN_BYTES
        self._hash = sha256(usedforsecurity=False)
        self._num_hashed = 0
        self._rest = b""
        self.keys: list[bytes] = []
        """Keys of all pages whose tokens (and lookahead) are known, in order."""
        self.extend(token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens that were given."""
        return (self._num_hashed + len(self._rest)) // TOKEN_BYTES

    def extend(self, token_ids: Iterable[int] | bytes) -> None:
        """Append tokens and hash the pages that they complete."""
        packed = token_ids if isinstance(token_ids, bytes) else pack_tokens(token_ids)
        octets = memoryview(self._rest + packed if self._rest else packed)
        update, digest, keys = self._hash.update, self._hash.digest, self.keys
        start, end = 0, self._page_bytes if keys else self._to_first
        while end <= len(octets):
            update(octets[start:end])
            keys.append(digest()[:_DIGEST_BYTES])
            start, end = end, end + self._page_bytes
        self._num_hashed += start
        self._rest = bytes(octets[start:])
