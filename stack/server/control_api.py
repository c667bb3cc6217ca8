"""What an operator or a router asks of an instance: flush, abort, profile, drain, and where its worker is met."""

import math
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from stack.core import messages
from stack.core.errors import RequestError
from stack.server.bodies import AbortBody, ProfileBody, parse
from stack.server.generation import Finish
from stack.server.link import LinkError
from stack.server.requests import instance_of
from stack.server.responses import json_response, read_body

_FLUSH_WAIT_S = 5.0  # without ?timeout: routers flush without one, while transfers may still be under way
_MAX_FLUSH_WAIT_S = 3600.0
_ANSWER_GRACE_S = 30.0
_PROFILE_REFUSAL_S = 1.0
_PROFILE_END_S = 120.0
_UNTIL_STOPPED = 2**31 - 1
_SMALL_BODY = 2**16

_ABORTED = Finish("abort", None, "the request was aborted on demand")


async def flush_cache(request: Request) -> Response:
    """Drop the prefix caches once idle: 200, or 400 when still busy after the wait."""
    instance = instance_of(request)
    instance.check_serving()
    wait_s = _seconds(request.query_params.get("timeout"))

    def flush(call: int) -> messages.ToWorker:
        return messages.Flush(call=call, timeout_s=wait_s)

    try:
        flushed = await instance.link.call(flush, wait_s + _ANSWER_GRACE_S)
    except LinkError as error:
        raise RequestError(str(error), status=503) from None
    if flushed.reason:
        raise RequestError(f"the cache was not flushed: {flushed.reason}")
    instance.metrics.reset()
    return PlainTextResponse("Cache flushed.\n")


async def abort_request(request: Request) -> Response:
    """End the requests of one id, or all."""
    instance = instance_of(request)
    body = parse(AbortBody, await read_body(request, _SMALL_BODY))
    if not body.abort_all and not body.rid:
        raise RequestError("give a rid, or abort_all: true")
    chosen = [g for g in instance.generations.values() if body.abort_all or g.client_rid == body.rid]
    instance.abort(chosen, _ABORTED)
    return json_response({"num_aborted": len(chosen)})


async def start_profile(request: Request) -> Response:
    """Record a trace of the next steps, or of all until /stop_profile."""
    instance = instance_of(request)
    instance.check_serving()
    body = parse(ProfileBody, await read_body(request, _SMALL_BODY))
    num_steps = _UNTIL_STOPPED if body.num_steps is None else body.num_steps
    if not 1 <= num_steps <= _UNTIL_STOPPED:
        raise RequestError(f"num_steps must lie between 1 and {_UNTIL_STOPPED}")
    folder = str(Path(body.output_dir or "profiles").resolve())

    def profile(call: int) -> messages.ToWorker:
        return messages.Profile(call=call, folder=folder, num_steps=num_steps)

    try:
        answer = await instance.link.call(profile, _PROFILE_REFUSAL_S)
    except LinkError:  # it records; the answer comes with the trace
        return PlainTextResponse(f"Profiling into {folder}.\n")
    if answer.reason:
        raise RequestError(f"profiling did not start: {answer.reason}")
    return PlainTextResponse(f"Profile written to {answer.path}.\n" if answer.path else f"Profiling into {folder}.\n")


async def stop_profile(request: Request) -> Response:
    """End a trace that records."""
    instance = instance_of(request)
    instance.check_serving()

    def stop(call: int) -> messages.ToWorker:
        return messages.Profile(call=call, folder="", num_steps=0)

    try:
        answer = await instance.link.call(stop, _PROFILE_END_S)
    except LinkError as error:
        raise RequestError(str(error), status=503) from None
    if answer.reason:
        raise RequestError(f"no profile was written: {answer.reason}")
    return PlainTextResponse(f"Profile written to {answer.path or instance.profile_path}.\n")


async def drain(request: Request) -> Response:
    """Refuse new requests, finish those that run, then exit with 0."""
    instance = instance_of(request)
    instance.drain_asked.set()
    return json_response({"status": "draining", "num_running": len(instance.generations)})


async def disagg_endpoint(request: Request) -> Response:
    """Where decode instances reach this prefill instance's worker."""
    instance = instance_of(request)
    if instance.config.role != "prefill":
        raise RequestError(f"this is a {instance.config.role} instance; only a prefill instance has an endpoint", 404)
    instance.check_serving()
    ready = instance.ready
    assert ready is not None
    return json_response(
        {"address": ready.disagg_address, "layout_hash": ready.layout_hash, "instance": ready.instance}
    )


def _seconds(given: str | None) -> float:
    if given is None:
        return _FLUSH_WAIT_S
    try:
        wait_s = float(given)
    except ValueError:
        wait_s = math.nan
    if not 0.0 <= wait_s <= _MAX_FLUSH_WAIT_S:
        raise RequestError(f"timeout must be seconds between 0 and {_MAX_FLUSH_WAIT_S:g}, not {given!r}")
    return wait_s
