"""HTTP/1.1 connections of the load: requests go out whole, and the read that brings a piece of an answer hands it on.

A decode step brings an event for every stream at once. A stream object that wakes a task for each network read costs
more than reading the event does; here no task is woken before the answer has ended. Knows nothing of events or tokens.
Follows no redirect and uses no proxy: what is measured is the server that was named.
"""

import asyncio
import base64
import ssl
import time
from collections import deque
from typing import Protocol, cast
from urllib.parse import unquote, urlsplit

import httptools

KEEP_ALIVE_S = 0.9
"""Shorter than any server's own, so that no request is sent on a connection that is being closed."""
CONNECT_TIMEOUT_S = 30.0


class BrokenAnswerError(ConnectionError):
    """The connection ended before the answer, or brought what is no HTTP answer."""


class Receiver(Protocol):
    """Takes an answer while it arrives. Called from the event loop's read; what it raises ends the exchange."""

    def head(self, status: int, arrived_s: float) -> None:
        """The status line and headers are here (monotonic time of the read)."""
        ...

    def body(self, data: bytes, arrived_s: float) -> None:
        """A piece of the body, without the framing of the transfer."""
        ...


class Connections:
    """Connections to one URL: an idle one is used again, there is no limit on how many are open."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._head = _request_head(url)
        self._idle: deque[tuple[float, Connection]] = deque()

    async def post(self, body: bytes, receiver: Receiver) -> None:
        """Send a JSON body; return when the answer has ended. Raises OSError, and what the receiver raises."""
        connection = self._take() or await self._connect()
        await connection.exchange(self._head % len(body), body, receiver)
        if connection.is_reusable:
            self._idle.append((time.monotonic(), connection))
        else:
            connection.close()

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop()[1].close()

    def _take(self) -> "Connection | None":
        oldest = time.monotonic() - KEEP_ALIVE_S
        while self._idle and (self._idle[0][0] < oldest or not self._idle[0][1].is_reusable):
            self._idle.popleft()[1].close()
        while self._idle:
            connection = self._idle.pop()[1]
            if connection.is_reusable:
                return connection
        return None

    async def _connect(self) -> "Connection":
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(
                lambda: Connection(loop), self._host, self._port, ssl=self._tls
            )
        return connection


class Connection(asyncio.Protocol):
    """One connection: one exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._receiver: Receiver | None = None
        self._done: asyncio.Future[None] | None = None
        self._arrived_s = 0.0
        self._has_head = self._is_framed = False
        self.is_reusable = True
        """Whether another request may be sent."""

    async def exchange(self, head: bytes, body: bytes, receiver: Receiver) -> None:
        """Send a request; return when its answer has ended. A failed or cancelled one closes the connection."""
        self._receiver, self._done = receiver, self._loop.create_future()
        self._has_head = self._is_framed = False
        try:
            self._transport.write(head)
            self._transport.write(body)
            await self._done
        except BaseException:
            self.is_reusable = False
            self._transport.abort()
            raise
        finally:
            self._receiver = self._done = None

    def close(self) -> None:
        """Close an idle connection."""
        self.is_reusable = False
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Read the clock, then everything that came."""
        self._arrived_s = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(BrokenAnswerError(f"what came is no HTTP answer: {error}"))
        if self._done is None:  # nobody asked: the server is about to close
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """An answer without a length ends here; any other breaks."""
        self.is_reusable = False
        if self._has_head and not self._is_framed and exc is None:
            self._end(None)
        elif exc is not None:
            self._end(BrokenAnswerError(f"{type(exc).__name__}: {exc}"))
        else:
            place = "in the middle of" if self._has_head else "before"
            self._end(BrokenAnswerError(f"the server closed the connection {place} the answer"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note whether the answer says where it ends."""
        self._is_framed = self._is_framed or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """Hand on the status; an interim answer (1xx) is not one."""
        status = self._parser.get_status_code()
        self._has_head = status >= 200
        if self._has_head and self._receiver is not None:
            try:
                self._receiver.head(status, self._arrived_s)
            except Exception as error:
                self._end(error)

    def on_body(self, data: bytes) -> None:
        """Hand on a piece of the body, unless the exchange has ended."""
        if self._done is not None and not self._done.done():
            assert self._receiver is not None
            try:
                self._receiver.body(data, self._arrived_s)
            except Exception as error:
                self._end(error)

    def on_message_complete(self) -> None:
        """The answer has ended as its framing says."""
        if self._has_head:
            is_written = self._transport.get_write_buffer_size() == 0
            self.is_reusable = self.is_reusable and is_written and self._parser.should_keep_alive()
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)


def _request_head(url: str) -> bytes:
    """The head of every request, with a place for the body's length."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    account, _, host = parts.netloc.rpartition("@")
    lines = [f"POST {target} HTTP/1.1", f"host: {host}", "user-agent: np1d", "accept: text/event-stream"]
    if account:
        lines.append(f"authorization: Basic {base64.b64encode(unquote(account).encode()).decode()}")
    lines.append("content-type: application/json")
    return "\r\n".join(lines).replace("%", "%%").encode() + b"\r\ncontent-length: %d\r\n\r\n"
