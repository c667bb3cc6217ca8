"""What every handler does first: find the instance, check that it serves, read the body, name the request."""

import uuid

from starlette.requests import Request

from stack.server.instance import Instance
from stack.server.responses import read_body


def instance_of(request: Request) -> Instance:
    """The instance behind the application."""
    instance: Instance = request.app.state.instance
    return instance


async def open_request(request: Request) -> bytes:
    """The body of a request for tokens. Raises RequestError when none are to be had."""
    instance = instance_of(request)
    instance.check_open()
    return await read_body(request, instance.config.server.max_body_bytes)


def request_id(request: Request) -> tuple[str, dict[str, str]]:
    """The request's id, the client's own where its header gives one, and the headers that repeat it."""
    given = request.headers.get("x-request-id", "")
    if 0 < len(given) <= 256:
        return given, {"x-request-id": given}
    return uuid.uuid4().hex, {}
