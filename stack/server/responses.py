"""Answers over ASGI: JSON, one-sentence errors, and event streams that follow a group of generations.

A client that leaves is noticed while its answer is computed, and its generations end. A failure before the first byte
is a status; after it the connection breaks, so that nobody takes a cut answer for a whole one.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stack.core.errors import RequestError
from stack.server.generation import Finish, Generation, Group
from stack.server.instance import Instance

_CLIENT_GONE = Finish("abort", None, "the client closed its connection", 499)
_HEADERS_GRACE_S = 0.01


class Renderer(Protocol):
    """Turns a generation's news into the data of events."""

    def events(self, generation: Generation) -> Iterator[Any]:
        """The JSON values to send for what is new."""

    def last_events(self) -> Iterator[Any]:
        """What follows when all have ended."""


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`value` as JSON."""
    return Response(orjson.dumps(value), status, headers, "application/json")


def error_response(message: str, status: int) -> Response:
    """One sentence as the API's error body; 503 says when to come back."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "code": status}
    return json_response({"error": error}, status, {"retry-after": "1"} if status == 503 else None)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises RequestError with 413 as soon as it is known to be too large."""
    too_large = RequestError(f"the body is larger than {max_bytes} bytes; raise server.max_body_bytes", status=413)
    if int(request.headers.get("content-length") or 0) > max_bytes:
        raise too_large
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise too_large
        chunks.append(chunk)
    return b"".join(chunks)


async def wait_for_all(group: Group, request: Request, instance: Instance) -> None:
    """Return when all generations have ended well. Raises RequestError with the status of the first that failed."""
    async with _watched(group, request.receive, instance):
        await group.done()
    if group.failure is not None:
        raise RequestError(group.failure.error, status=group.failure.status)


class EventStream(Response):
    """Server-sent events of a group: `data: <json>` per news, then `data: [DONE]`.

    The status waits for the first news, so that a refusal is still a status. A decode instance waits a moment only,
    because its router must not; a prefill instance waits for the end, because that is its whole answer.
    """

    def __init__(self, group: Group, renderer: Renderer, instance: Instance, headers: dict[str, str]) -> None:
        self._group = group
        self._renderer = renderer
        self._instance = instance
        self._own_headers = headers
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole stream."""
        async with _watched(self._group, receive, self._instance):
            await self._settle()
            failure = self._group.failure
            if failure is not None:
                await error_response(failure.error, failure.status)(scope, receive, send)
                return
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
            headers += [(name.encode(), value.encode("latin-1")) for name, value in self._own_headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for generation in self._group.changes():
                if self._group.failure is not None:
                    return  # without an end: the connection breaks
                data = b"".join(_event(value) for value in self._renderer.events(generation))
                if data:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            end = b"".join(_event(value) for value in self._renderer.last_events()) + b"data: [DONE]\n\n"
            await send({"type": "http.response.body", "body": end, "more_body": False})

    async def _settle(self) -> None:
        """Wait until the status can be told."""
        role = self._instance.config.role
        if role == "prefill":
            await self._group.done()
        elif role == "single":
            await self._group.first_change()
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._group.first_change(), _HEADERS_GRACE_S)


@contextlib.asynccontextmanager
async def _watched(group: Group, receive: Receive, instance: Instance) -> AsyncIterator[None]:
    """Within it, a client that leaves ends the group; leaving it ends what is still open."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        instance.abort(group.generations, _CLIENT_GONE)

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        instance.abort(group.generations, _CLIENT_GONE)


def _event(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
