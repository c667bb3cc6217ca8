"""Whose turn it is in a pair: hands the baton (`workloads.baton`) to one of two load clients at a time.

Knows nothing of engines, plans or results. The order is ABBA ABBA ..., so that a drift of the machine's speed meets
both sides alike. Invariants: the first turn begins when both are ready; at most one side holds the baton; both are let
go together. A side that dies, keeps the baton too long or says what it must not ends the pair for both, and a sentence
tells why.
"""

import contextlib
import os
import selectors
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from workflows.errors import SessionError

MAX_SOCKET_PATH = 107
"""Bytes that Linux takes for the path of a socket."""
MAX_WORDS_BYTES = 4096
"""More than this without an end of line is no client's word."""


def order(sides: Sequence[str], passes: int) -> list[str]:
    """Whose turn is when: A B, B A, A B ... until each side has had so many."""
    first, second = sides
    return [side for k in range(passes) for side in ((first, second) if k % 2 == 0 else (second, first))]


class Referee:
    """Listens on one socket a side; `step` does what is due. Used as a context: leaving it closes everything."""

    def __init__(
        self,
        sides: Sequence[str],
        passes: int,
        *,
        max_pass_s: float,
        folder: Path | None = None,
        show: Callable[[int, int, str], None] = lambda turn, turns, side: None,
    ) -> None:
        """`folder` is for the sockets alone and goes with them; `show` hears of every turn, from 1 on.

        Raises SessionError where the folder's path is longer than the kernel takes for a socket.
        """
        self._order = order(sides, passes)
        self._max_pass_s = max_pass_s
        self._show = show
        self._folder = folder or Path(tempfile.mkdtemp(prefix="pair-"))
        self._selector = selectors.DefaultSelector()
        self._clients: dict[str, socket.socket] = {}
        self._heard: dict[str, bytes] = dict.fromkeys(sides, b"")
        self._ready: set[str] = set()
        self._turn = 0
        self._holder: str | None = None
        self._given_s = 0.0
        self.is_complete = False
        """Every turn is over and both sides were let go."""
        self.stopped: str | None = None
        """Why the pair ended before its time."""
        for side in sides:
            self._listen(side)

    def path(self, side: str) -> Path:
        """Where a side's client reaches the referee."""
        return self._folder / side

    def has_heard(self, side: str) -> bool:
        """Whether a side is ready."""
        return side in self._ready

    def step(self, wait_s: float) -> None:
        """Hear what clients say within `wait_s`, and hand the baton on where that is due."""
        for key, _ in self._selector.select(wait_s):
            kind, side = key.data
            if kind == "listener":
                self._accept(side, key.fileobj)  # type: ignore[arg-type]
            else:
                self._hear(side, key.fileobj)  # type: ignore[arg-type]
        self._go_on()

    def stop(self, sentence: str) -> None:
        """End the pair for both sides, with one sentence."""
        if self.is_complete or self.stopped:
            return
        self.stopped = sentence
        for side in list(self._clients):
            self._tell(side, f"stop {sentence}")

    def __enter__(self) -> "Referee":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave both sides: whoever still waits is told by its socket's end."""
        for key in list((self._selector.get_map() or {}).values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _listen(self, side: str) -> None:
        path = self.path(side)
        if (length := len(os.fsencode(path))) > MAX_SOCKET_PATH:
            raise SessionError(
                "socket_path",
                f"a socket's path may have {MAX_SOCKET_PATH} bytes and {path} has {length}; "
                "set TMPDIR to a shorter folder",
            )
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(1)
        self._selector.register(listener, selectors.EVENT_READ, ("listener", side))

    def _accept(self, side: str, listener: socket.socket) -> None:
        client, _ = listener.accept()
        if side in self._clients:
            client.close()
            self.stop(f"two clients came as the {side}")
            return
        self._clients[side] = client
        self._selector.register(client, selectors.EVENT_READ, ("client", side))
        if self.stopped:
            self._tell(side, f"stop {self.stopped}")

    def _hear(self, side: str, client: socket.socket) -> None:
        try:
            words = client.recv(MAX_WORDS_BYTES)
        except OSError:
            words = b""
        if not words:
            self._lose(side, client)
            return
        *lines, self._heard[side] = (self._heard[side] + words).split(b"\n")
        for line in lines:
            self._take_in(side, line)
        if len(self._heard[side]) >= MAX_WORDS_BYTES:
            self.stop(f"the {side} says what no load client says")

    def _take_in(self, side: str, line: bytes) -> None:
        if line == b"ready" and side not in self._ready:
            self._ready.add(side)
        elif line == b"done" and side == self._holder:
            self._holder = None
            self._turn += 1
        else:
            self.stop(f"the {side} said {line[:40].decode('utf-8', 'replace')!r} when it was not its turn to")

    def _lose(self, side: str, client: socket.socket) -> None:
        self._selector.unregister(client)
        client.close()
        del self._clients[side]
        self.stop(f"the load client of the {side} ended in turn {self._turn + 1} of {len(self._order)}")

    def _go_on(self) -> None:
        if self.stopped or self.is_complete or len(self._ready) < len(self._heard):
            return
        if self._holder is not None:
            if time.monotonic() - self._given_s > self._max_pass_s:
                self.stop(f"the {self._holder} kept the baton for more than {self._max_pass_s:g} s")
        elif self._turn == len(self._order):
            self.is_complete = True
            for side in list(self._clients):
                self._tell(side, "end")
        else:
            self._holder, self._given_s = self._order[self._turn], time.monotonic()
            self._show(self._turn + 1, len(self._order), self._holder)
            self._tell(self._holder, "go")

    def _tell(self, side: str, words: str) -> None:
        with contextlib.suppress(OSError):  # whoever has gone is noticed by the next step
            self._clients[side].sendall(f"{words}\n".encode())
