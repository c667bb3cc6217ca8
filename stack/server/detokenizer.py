"""One request's tokens as text, while they arrive: whole characters only, cut at a stop string.

Invariants: the text equals decoding all pushed tokens at once, up to the stop string; what `stable_length` covers is
never taken back.
"""

import codecs
from collections.abc import Sequence

from stack.server.tokenizer import TokenText


class TextStream:
    """Grows by one token at a time. Without a tokenizer the text stays empty."""

    def __init__(
        self,
        tokenizer: TokenText | None,
        *,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._min_tokens = min_tokens
        self._skipped = tokenizer.special_ids if tokenizer and skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_tokens = 0
        self._is_open = True
        self.text = ""
        """What was decoded so far; shorter after a stop string was cut."""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, token_id: int) -> bool:
        """Add a token; True when it completed a stop string, which is then cut from the text.

        A stop string counts when the token that completes it is the `min_tokens`-th or a later one.
        """
        self._num_tokens += 1
        if self._tokenizer is None or token_id in self._skipped:
            return False
        piece = self._decoder.decode(self._tokenizer.bytes_of(token_id))
        if not piece:
            return False
        old = len(self.text)
        self.text += piece
        return bool(self._stop) and self._num_tokens >= self._min_tokens and self._cut(old)

    def close(self) -> None:
        """No more tokens: an unfinished character becomes U+FFFD, held text is released."""
        if self._is_open and self.matched is None:
            self.text += self._decoder.decode(b"", final=True)
        self._is_open = False

    @property
    def stable_length(self) -> int:
        """Characters that may be sent: all but an end that could still grow into a stop string."""
        if not self._is_open or not self._stop or self.matched is not None:
            return len(self.text)
        return len(self.text) - max(_overlap(self.text, stop) for stop in self._stop)

    def _cut(self, old: int) -> bool:
        """Cut at the first stop string that ends after character `old`."""
        found = [(at, s) for s in self._stop if (at := self.text.find(s, max(0, old - len(s) + 1))) >= 0]
        if not found:
            return False
        at, self.matched = min(found, key=lambda pair: pair[0])
        self.text = self.text[:at]
        self._is_open = False
        return True


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop` and not all of it."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at = text.find(stop[0], at + 1)
    return 0
