"""The HTTP process's end of the ZeroMQ pair to its worker: fire-and-forget messages, and calls with one answer.

The socket lives in a folder that only this user can enter. The first peer to speak is the worker; besides it only its
heartbeat is heard.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from stack.core import messages
from stack.core.errors import EngineError

_BATCH = 512  # messages handled before other work gets a turn


class LinkError(EngineError):
    """The worker did not answer, or is gone."""


class Link:
    """Owns the socket. `on_message` gets every message that is not the answer to a call."""

    def __init__(self, folder: Path, on_message: Callable[[Any], None]) -> None:
        self.address = f"ipc://{folder}/worker"
        self._on_message = on_message
        self._peer: bytes | None = None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._num_calls = 0
        self._ended = ""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(self.address)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self.receive)

    def send(self, message: messages.ToWorker) -> None:
        """Queue a message; dropped while the worker has not spoken yet."""
        if self._peer is not None and not self._socket.closed:
            self._socket.send_multipart([self._peer, messages.encode(message)], zmq.NOBLOCK)
            self._loop.call_soon(self.receive)  # the socket's descriptor only signals edges

    async def call(self, make: Callable[[int], messages.ToWorker], timeout_s: float | None) -> Any:
        """Send `make(call id)` and return the answer with that id. Raises LinkError when there is none in time."""
        if self._ended:
            raise LinkError(self._ended)
        self._num_calls += 1
        number = self._num_calls
        answer = self._calls[number] = self._loop.create_future()
        try:
            self.send(make(number))
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            raise LinkError(f"the worker did not answer within {timeout_s:g} s") from None
        finally:
            del self._calls[number]

    def receive(self) -> None:
        """Handle what has arrived."""
        for _ in range(_BATCH):
            if self._socket.closed:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._handle(frames)
        self._loop.call_soon(self.receive)

    def end_calls(self, reason: str) -> None:
        """The worker answers no more: fail the calls that wait, and every later one."""
        self._ended = self._ended or reason
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(LinkError(self._ended))

    def close(self) -> None:
        """Close the socket and fail the calls that wait."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._context.term()
        self.end_calls("the worker is gone")

    def _handle(self, frames: list[bytes]) -> None:
        if self._peer is None and frames[0] != messages.HEARTBEAT_PEER:
            self._peer = frames[0]
        if len(frames) != 2 or frames[0] not in (self._peer, messages.HEARTBEAT_PEER):
            return
        try:
            message = messages.decode_from_worker(frames[1])
        except msgspec.DecodeError as error:
            message = messages.Fatal(message=f"the worker sent a malformed message: {error}")
        answer = self._calls.get(getattr(message, "call", 0))
        if answer is None:
            self._on_message(message)
        elif not answer.done():
            answer.set_result(message)
