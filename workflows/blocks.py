"""In which order sessions run, so that a drifting machine does not favour a row.

A block holds every cell once, in an order drawn from the seed. With two cells the blocks go ABBA. The order depends on
the seed and the cells alone, so that a session that is added later keeps the places of the earlier ones.
"""

import hashlib
from collections.abc import Sequence


def order(cells: Sequence[str], sessions: int, seed: int) -> list[tuple[str, int]]:
    """(cell, session) in the order of running: block after block."""
    ordered: list[tuple[str, int]] = []
    for session in range(sessions):
        ordered += [(cell, session) for cell in block(cells, session, seed)]
    return ordered


def block(cells: Sequence[str], session: int, seed: int) -> list[str]:
    """The cells of one block in their order."""
    if len(cells) == 2:
        first = sorted(cells, key=lambda cell: _draw(cell, session // 2, seed))
        return first if session % 2 == 0 else first[::-1]
    return sorted(cells, key=lambda cell: _draw(cell, session, seed))


def _draw(cell: str, session: int, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}/{session}/{cell}".encode()).digest()
