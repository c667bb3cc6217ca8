"""A server that answers instantly and thinks nothing: what a client can carry, and nothing else.

    python -m workloads.null_server [--gap-ms 5.6] [--tokens-per-event 1] [--text-bytes 0] [--in-step]

It speaks just enough of `/generate` for this client and for others: every event is rendered beforehand and written as
one HTTP chunk. With `--in-step` all streams get their event at the same moment, as from a decode step; otherwise each
keeps its own time. A gap of 0 writes an answer as fast as the socket takes it. It prints its URL and ends with its
standard input.
"""

import argparse
import asyncio
import functools
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any, cast

import orjson
import uvloop

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_LIMIT = re.compile(rb'"max_new_tokens"\s*:\s*(\d+)')
_BATCH = 64
"""Events written at once without a gap, so that one stream does not starve the others."""


class NullServer:
    """What all connections share: the pace and the rendered events."""

    def __init__(self, *, gap_s: float, tokens_per_event: int, text_bytes: int, in_step: bool) -> None:
        self.gap_s = gap_s
        self.tokens_per_event = tokens_per_event
        self.text_bytes = text_bytes
        self.in_step = in_step
        self.num_events = 0
        self.streams: set[Stream] = set()

    @functools.lru_cache(maxsize=16)  # noqa: B019 - one server lives as long as its process
    def events(self, prompt_tokens: int, limit: int) -> list[bytes]:
        """The chunks of an answer, as they go out."""
        rendered = []
        for sent in range(self.tokens_per_event, limit + self.tokens_per_event, self.tokens_per_event):
            sent = min(sent, limit)
            finish = {"type": "length", "length": limit} if sent == limit else None
            meta: dict[str, Any] = {"id": "null", "prompt_tokens": prompt_tokens, "completion_tokens": sent}
            meta |= {"cached_tokens": 0, "finish_reason": finish}
            text = "x" * max(1, sent * self.text_bytes)
            data = b"data: " + orjson.dumps({"text": text, "meta_info": meta}) + b"\n\n"
            rendered.append(b"%x\r\n%s\r\n" % (len(data), data))
        return rendered

    async def step_for_ever(self) -> None:
        """With `in_step`: one event for every stream, then a gap."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            for stream in list(self.streams):
                stream.step()
            due = max(due + self.gap_s, loop.time())
            await asyncio.sleep(due - loop.time())


class Stream:
    """One answer on its way."""

    __slots__ = ("_events", "_next", "_server", "_transport")

    def __init__(self, server: NullServer, transport: asyncio.Transport, events: list[bytes]) -> None:
        self._server = server
        self._transport = transport
        self._events = events
        self._next = 0

    def begin(self) -> None:
        """Send the head, then events at the server's pace."""
        self._transport.write(_STREAM_HEAD)
        if self._server.in_step:
            self._server.streams.add(self)
        elif self._server.gap_s > 0:
            self._tick(asyncio.get_running_loop().time())
        else:
            self._flood()

    def step(self) -> bool:
        """Send one event; False after the last one."""
        if self._transport.is_closing():
            self._server.streams.discard(self)
            return False
        self._transport.write(self._events[self._next])
        self._next += 1
        self._server.num_events += 1
        if self._next == len(self._events):
            self._transport.write(_END)
            self._server.streams.discard(self)
            return False
        return True

    def _tick(self, due: float) -> None:
        if self.step():
            due += self._server.gap_s
            asyncio.get_running_loop().call_at(due, self._tick, due)

    def _flood(self) -> None:
        for _ in range(_BATCH):
            if not self.step():
                return
        asyncio.get_running_loop().call_soon(self._flood)


class Connection(asyncio.Protocol):
    """One client connection: finds whole requests in the bytes, answers each."""

    def __init__(self, server: NullServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._need = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to answer."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Collect until the request is whole."""
        self._buffer += data
        while self._buffer and len(self._buffer) >= self._need:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._buffer[:end])
            found = re.search(rb"(?i)content-length:\s*(\d+)", head)
            self._need = end + 4 + (int(found[1]) if found else 0)
            if len(self._buffer) < self._need:
                return
            body = bytes(self._buffer[end + 4 : self._need])
            del self._buffer[: self._need]
            self._need = 0
            self._answer(head.split(b" ", 2)[1].partition(b"?")[0], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        if path == b"/generate":
            limit = _LIMIT.search(body, max(0, len(body) - 4096)) or _LIMIT.search(body)
            start = body.find(b'"input_ids"')
            ids = body[start : body.find(b"]", start)].count(b",") + 1 if start >= 0 else 1
            events = self._server.events(ids, int(limit[1]) if limit else 16)
            Stream(self._server, self._transport, events).begin()
        elif path in _PAGES:
            page = _PAGES[path]
            self._transport.write(_HEAD % (b"application/json", len(page), page))
        else:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")


_PAGES = {
    b"/health": b"",
    b"/flush_cache": b"flushed",
    b"/server_info": b'{"version":"null","internal_states":[{"last_gen_throughput":0.0}]}',
    b"/model_info": b'{"model_path":"null","is_generation":true}',
    b"/v1/models": b'{"object":"list","data":[{"id":"null","object":"model"}]}',
}


async def serve(server: NullServer, port: int) -> None:
    """Serve on loopback until standard input ends."""
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Connection(server), "127.0.0.1", port, backlog=4096)
    sys.stdout.write(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(sys.stdin.fileno(), 1024) else stop.set())
    stepper = asyncio.create_task(server.step_for_ever()) if server.in_step else None
    await stop.wait()
    if stepper is not None:
        stepper.cancel()
    listener.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m workloads.null_server", description="Answer and think nothing.")
    parser.add_argument("--port", type=int, default=0, help="port (default: a free one)")
    parser.add_argument("--gap-ms", type=float, default=0.0, help="time between events of a stream; 0 is no pause")
    parser.add_argument("--tokens-per-event", type=int, default=1, help="tokens that an event carries")
    parser.add_argument("--text-bytes", type=int, default=0, help="bytes of cumulative text for every token")
    parser.add_argument("--in-step", action="store_true", help="all streams get their event at the same moment")
    options = parser.parse_args(arguments)
    server = NullServer(
        gap_s=options.gap_ms / 1000,
        tokens_per_event=options.tokens_per_event,
        text_bytes=options.text_bytes,
        in_step=options.in_step,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(server, options.port))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
