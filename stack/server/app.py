"""Which URL is answered by what, and how every failure becomes one sentence of JSON."""

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from stack.core.errors import RequestError
from stack.server import control_api, generate_api, info_api, openai_api
from stack.server.instance import Instance
from stack.server.responses import error_response

_LOG = logging.getLogger(__name__)
_BOTH = ["GET", "POST"]

_ROUTES = [
    Route("/", info_api.health, methods=["GET"]),
    Route("/health", info_api.health, methods=["GET"]),
    Route("/ready", info_api.health, methods=["GET"]),
    Route("/ping", info_api.health, methods=["GET"]),
    Route("/health_generate", info_api.health_generate, methods=["GET"]),
    Route("/v1/models", info_api.models, methods=["GET"]),
    Route("/model_info", info_api.model_info, methods=["GET"]),
    Route("/get_model_info", info_api.model_info, methods=["GET"]),
    Route("/server_info", info_api.server_info, methods=["GET"]),
    Route("/get_server_info", info_api.server_info, methods=["GET"]),
    Route("/get_load", info_api.load, methods=["GET"]),
    Route("/metrics", info_api.metrics, methods=["GET"]),
    Route("/generate", generate_api.generate, methods=["POST", "PUT"]),
    Route("/v1/completions", openai_api.completions, methods=["POST"]),
    Route("/v1/chat/completions", openai_api.chat_completions, methods=["POST"]),
    Route("/flush_cache", control_api.flush_cache, methods=_BOTH),
    Route("/abort_request", control_api.abort_request, methods=["POST"]),
    Route("/start_profile", control_api.start_profile, methods=_BOTH),
    Route("/stop_profile", control_api.stop_profile, methods=_BOTH),
    Route("/drain", control_api.drain, methods=["POST"]),
    Route("/disagg/endpoint", control_api.disagg_endpoint, methods=["GET"]),
]


def build_app(instance: Instance) -> Starlette:
    """The ASGI application of one instance."""
    handlers = {RequestError: _refused, HTTPException: _no_such, ClientDisconnect: _gone, Exception: _broken}
    app = Starlette(routes=_ROUTES, exception_handlers=handlers)  # type: ignore[arg-type]
    app.state.instance = instance
    return app


async def _refused(request: Request, error: RequestError) -> Response:
    return error_response(str(error), error.status)


async def _no_such(request: Request, error: HTTPException) -> Response:
    return error_response(f"{request.method} {request.url.path}: {error.detail}", error.status_code)


async def _gone(request: Request, error: ClientDisconnect) -> Response:
    return error_response("the client closed its connection", 499)


async def _broken(request: Request, error: Exception) -> Response:
    return error_response("internal error; the server's log has the details", 500)
