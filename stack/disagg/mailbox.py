"""Events on their way from a control thread to the engine's loop, with a file descriptor to sleep on."""

import queue
import socket
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """One writer, one reader."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def put(self, event: T) -> None:
        """Add an event and make the descriptor readable."""
        self._events.put(event)
        try:
            self._writer.send(b"x")
        except OSError:
            return  # full: readable already; closed: nobody reads

    def take(self) -> list[T]:
        """All events so far, in order; the descriptor is unreadable until the next one."""
        try:
            while self._reader.recv(4096):
                pass
        except OSError:
            pass
        taken = []
        while not self._events.empty():
            taken.append(self._events.get())
        return taken

    def fileno(self) -> int:
        """Readable while events wait."""
        return self._reader.fileno()

    def close(self) -> None:
        """Give the descriptor back."""
        self._reader.close()
        self._writer.close()
