"""A thread that owns ZeroMQ sockets and runs everything that touches them, one thing at a time.

Knows nothing of what it runs. Order within a round: messages that have arrived, then calls from other threads, then the
tick; so a thread that was stopped for a while reads what it missed before it judges anybody by the clock.
"""

import logging
import queue
import socket
import threading
from collections.abc import Callable

import zmq

from stack.core.errors import TransferError


class SocketLoop:
    """Runs until `close`. An exception in anything it runs ends it and is raised by `check` from then on."""

    def __init__(self, name: str, tick: Callable[[], None], tick_s: float) -> None:
        self._tick = tick
        self._tick_s = tick_s
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(self._woken, zmq.POLLIN)
        self._readers: dict[zmq.Socket[bytes], Callable[[], None]] = {}
        self._last: tuple[Callable[[], None], ...] = ()
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; sockets may be watched before."""
        self._thread.start()

    def call(self, action: Callable[[], None]) -> None:
        """Run `action` on the loop's thread soon; calls keep their order."""
        self._calls.put(action)
        self._wake()

    def watch(self, sock: "zmq.Socket[bytes]", read: Callable[[], None]) -> None:
        """Run `read` whenever the socket has something. On the loop's thread, or before `start`."""
        self._readers[sock] = read
        self._poller.register(sock, zmq.POLLIN)

    def unwatch(self, sock: "zmq.Socket[bytes]") -> None:
        """Stop watching. On the loop's thread."""
        del self._readers[sock]
        self._poller.unregister(sock)

    def check(self) -> None:
        """Raise TransferError if the loop has broken down."""
        if self._error is not None:
            raise TransferError(f"the control thread has ended: {self._error!r}") from self._error

    def close(self, *last: Callable[[], None], timeout_s: float = 5.0) -> None:
        """Run the calls that are queued, then `last`, then stop. No tick follows `last`."""
        self._last = last
        self._closing = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._woken.close()
        self._waker.close()

    def _run(self) -> None:
        try:
            while not (self._closing and self._calls.empty()):
                self._round()
            for action in self._last:
                action()
        except Exception as error:
            logging.getLogger(__name__).exception("the control thread has ended")
            self._error = error

    def _round(self) -> None:
        for source, _ in self._poller.poll(int(self._tick_s * 1000)):
            if source in self._readers:
                self._readers[source]()
        self._drain_wakes()
        while not self._calls.empty():
            self._calls.get()()
        self._tick()

    def _wake(self) -> None:
        try:
            self._waker.send(b"x")
        except (BlockingIOError, OSError):
            return  # full: it is awake already; closed: it needs no waking

    def _drain_wakes(self) -> None:
        try:
            while self._woken.recv(4096):
                pass
        except BlockingIOError:
            return
