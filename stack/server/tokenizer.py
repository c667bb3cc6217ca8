"""Text to tokens and tokens to bytes, from a checkpoint folder's `tokenizer.json`.

Only byte-level vocabularies are served: there every token is a fixed run of bytes, so tokens can be turned into text
one by one and the result equals decoding them all at once.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from stack.core.errors import ConfigError, RequestError


class TokenText:
    """A tokenizer, and the bytes behind each of its tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._bytes: dict[int, bytes] = {}
        self.special_ids = frozenset(i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special)
        self.vocab_size: int = tokenizer.get_vocab_size()

    @classmethod
    def from_folder(cls, folder: Path) -> "TokenText | None":
        """Read `tokenizer.json` in `folder`; None when there is none. Raises ConfigError when it cannot be used."""
        file = folder / "tokenizer.json"
        if not file.exists():
            return None
        try:
            tokenizer = Tokenizer.from_file(str(file))
            decoder = json.loads(file.read_bytes()).get("decoder")
        except Exception as error:  # the library raises bare Exception for a file that it cannot parse
            raise ConfigError(f"{file} cannot be read as a tokenizer: {error}") from None
        if not _is_byte_level(decoder):
            raise ConfigError(f"{file} is not a byte-level tokenizer, and no other kind is supported")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(tokenizer)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Raises RequestError for text that is not Unicode (a lone surrogate)."""
        try:
            # the batch call without offsets is twice as fast and lets other threads run
            ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except (UnicodeEncodeError, TypeError):
            raise RequestError("the prompt holds a lone surrogate, which is not Unicode text") from None
        return ids

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that a token stands for; none for an id that the tokenizer does not know."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = _token_bytes(self._tokenizer.id_to_token(token_id) or "")
        return found


def _is_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Sequence":
        parts = decoder.get("decoders") or []
        return len(parts) == 1 and _is_byte_level(parts[0])
    return decoder.get("type") == "ByteLevel"


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-in of each byte: itself where it prints, else the next free code point from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _token_bytes(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[char] for char in token)
    except KeyError:  # an added token is written as it reads
        return token.encode()
