"""Prompts as one run of bytes, four a token in the machine's order: from the HTTP process to a step's packed copy.

A list of 65,536 ids costs milliseconds wherever it is decoded, copied or read, and the thread that admits a request
also plans the steps of everybody else. Bytes are copied at memory speed.
"""

from array import array
from collections.abc import Iterable

TOKEN_BYTES = 4


def pack_tokens(token_ids: Iterable[int]) -> bytes:
    """The ids as bytes. Raises OverflowError for one beyond 31 bits; unknown ones are refused later."""
    packed = array("i", token_ids)
    assert packed.itemsize == TOKEN_BYTES
    return packed.tobytes()


def unpack_tokens(packed: bytes) -> list[int]:
    """The ids again. Slow for long prompts: nothing on the way of a request calls it."""
    return array("i", packed).tolist()
