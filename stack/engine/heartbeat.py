"""The worker's signs of life: a thread that says how long the loop has been in its present turn.

It is a thread so that a long step delays no sign: silence means a stopped or dead process, and a turn that never ends
is told as such. Knows nothing of what a turn does. It has a ZeroMQ socket of its own: sockets belong to one thread.
"""

import contextlib
import threading
import time

import zmq

from stack.core import messages

_MAX_INTERVAL_S = 2.0


class Heartbeat:
    """Speaks to the HTTP process at `address`, at least four times within `timeout_s`, until `close`."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address = address
        self._interval_s = min(timeout_s / 4, _MAX_INTERVAL_S)
        self._turned_s = time.monotonic()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def turned(self) -> None:
        """The loop begins another turn."""
        self._turned_s = time.monotonic()

    def close(self) -> None:
        """Say no more."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IDENTITY, messages.HEARTBEAT_PEER)
        socket.connect(self._address)
        while True:
            with contextlib.suppress(zmq.Again):  # nobody listens at the moment
                sign = messages.Alive(turn_s=time.monotonic() - self._turned_s)
                socket.send(messages.encode(sign), zmq.NOBLOCK)
            if self._closing.wait(self._interval_s):
                break
        socket.close()
        context.term()
