"""Blocks of ports for sessions: disjoint by a lock file each, and every port tried before it is given away.

The lock is held by the open file, so a session that dies in any way gives its block back.
"""

import contextlib
import dataclasses
import fcntl
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from workflows.errors import SessionError

BLOCK = 32
"""Ports in a block; no session needs more."""
NUM_BLOCKS = 128


@dataclasses.dataclass(frozen=True, slots=True)
class PortBlock:
    """Named ports that belong to this session alone."""

    ports: dict[str, int]
    lock: IO[str]

    def release(self) -> None:
        """Give the block back."""
        self.lock.close()


def take_block(names: Sequence[str], base: int, folder: Path, *, skip: int = 0) -> PortBlock:
    """The first free block from `base` on, less the first `skip` free ones. Raises SessionError when none is."""
    if len(names) > BLOCK:
        raise SessionError("ports", f"a session needs {len(names)} ports and a block has {BLOCK}")
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(base, min(base + BLOCK * NUM_BLOCKS, 65536 - BLOCK), BLOCK):
        lock = _lock(folder / f"{first}.lock")
        if lock is None:
            continue
        ports = range(first, first + len(names))
        if all(is_free(port) for port in ports):
            if skip == 0:
                return PortBlock(dict(zip(names, ports, strict=True)), lock)
            skip -= 1
        lock.close()
    raise SessionError(
        "ports", f"no free block of {len(names)} ports from {base} on; stop what uses them or set port_base"
    )


def is_free(port: int) -> bool:
    """Whether a server could listen on the port, on loopback and on all addresses."""
    for host in ("127.0.0.1", "0.0.0.0"):  # noqa: S104 - tried and closed, never listened on
        with contextlib.closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True


def still_open(ports: Sequence[int]) -> Iterator[int]:
    """Ports on which somebody answers."""
    for port in ports:
        with contextlib.closing(socket.socket()) as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                yield port


def _lock(path: Path) -> IO[str] | None:
    handle = path.open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        return None
    return handle
