"""A man in the middle of the control channel: loses, repeats or delays messages between decode and prefill."""

import threading
from collections.abc import Callable

import msgspec
import zmq

Treat = Callable[[str, str, bytes], list[bytes]]
"""Direction (`to_prefill`, `to_decode`), tag and body of a message to the bodies that go on."""


def pass_on(direction: str, tag: str, body: bytes) -> list[bytes]:
    del direction, tag
    return [body]


def lose_once(*tags: str) -> Treat:
    """The first message of each tag is lost."""
    left = list(tags)

    def treat(direction: str, tag: str, body: bytes) -> list[bytes]:
        del direction
        if tag in left:
            left.remove(tag)
            return []
        return [body]

    return treat


class Wire(threading.Thread):
    """Stands between decode and prefill on the control channel and does as it is told with each message."""

    def __init__(self, target: Callable[[], str]) -> None:
        super().__init__(daemon=True)
        self.context = zmq.Context()
        self.front = self.context.socket(zmq.ROUTER)
        self.front.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.address = f"tcp://127.0.0.1:{self.front.bind_to_random_port('tcp://127.0.0.1')}"
        self.target = target
        self.backs: dict[bytes, zmq.Socket[bytes]] = {}
        self.treat: Treat = pass_on
        self.ending = False
        self.stale = False

    def run(self) -> None:
        try:
            self.forward()
        finally:
            for sock in (self.front, *self.backs.values()):
                sock.close(0)
            self.context.term()

    def forward(self) -> None:
        while not self.ending:
            if self.stale:
                self.stale = False
                for back in self.backs.values():
                    back.close(0)
                self.backs.clear()
            for sock in zmq.select([self.front, *self.backs.values()], [], [], 0.05)[0]:
                if sock is self.front:
                    identity, body = self.front.recv_multipart()
                    for copy in self._treated("to_prefill", body):
                        self._back(identity).send(copy)
                else:
                    identity = next(name for name, back in self.backs.items() if back is sock)
                    for copy in self._treated("to_decode", sock.recv()):
                        self.front.send_multipart([identity, copy])

    def _treated(self, direction: str, body: bytes) -> list[bytes]:
        tag = msgspec.msgpack.decode(body)["type"]
        return self.treat(direction, tag, body)

    def _back(self, identity: bytes) -> "zmq.Socket[bytes]":
        if identity not in self.backs:
            self.backs[identity] = self.context.socket(zmq.DEALER)
            self.backs[identity].setsockopt(zmq.IDENTITY, identity)
            self.backs[identity].connect(self.target())
        return self.backs[identity]

    def reconnect(self) -> None:
        """The target has a new address."""
        self.stale = True

    def close(self) -> None:
        self.ending = True
        self.join(20)
        assert not self.is_alive()
