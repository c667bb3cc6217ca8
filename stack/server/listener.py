"""The HTTP listener: the port, claimed before anything slow starts, and uvicorn with quiet manners towards strangers.

Knows bytes and connections, not what is served. Something that is not HTTP/1.1, such as the gRPC greeting with which
routers probe a worker, is turned away without a word in the log.
"""

import contextlib
import errno
import logging
import resource
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stack.core.errors import ConfigError

_HTTP2_GREETING = b"PRI * HTTP/2.0"
_MAX_HEADER_BYTES = 64 * 2**10
_BACKLOG = 2048
_NOISE = (
    "ASGI callable returned without completing response.",  # how a stream is broken on purpose
    "Invalid HTTP request received.",
)


def claim_port(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ConfigError when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is in use; stop what listens there or set server.port (0 takes a free port)"
            ) from None
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


class Listener(uvicorn.Server):
    """uvicorn without its own signal handling."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=5,
        )
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(lambda record: record.getMessage() not in _NOISE)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the supervisor."""
        yield


def allow_many_connections() -> None:
    """Raise the limit of open files to what the system permits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Protocol(HttpToolsProtocol):
    """HTTP/1.1 with a bound on headers."""

    _header_bytes = 0
    _is_in_header = True
    _is_first = True

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless the peer speaks HTTP/2 or never ends its headers."""
        if self._is_first and data.startswith(_HTTP2_GREETING):
            self.transport.close()
            return
        self._is_first = False
        if self._is_in_header:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._is_in_header and self._header_bytes > _MAX_HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response("The headers are too large.")

    def on_message_begin(self) -> None:
        """A request line begins."""
        self._is_in_header, self._header_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The body begins."""
        self._is_in_header = False
        super().on_headers_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """A client may offer another protocol; it is answered in this one."""
