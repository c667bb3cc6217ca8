"""Finding a prefill instance's control channel, and finding out that nobody listens there any more.

Each question blocks on the network, so each has a thread of its own that ends with the answer; there are never more
than `MAX_QUESTIONS`. Knows nothing of rooms.
"""

import errno
import http.client
import re
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from stack.disagg.messages import Endpoint, decode_endpoint

PATH = "/disagg/endpoint"
MAX_QUESTIONS = 32
ATTEMPT_S = 2.0
PAUSE_S = 0.2
MAX_ANSWER_BYTES = 64 * 1024
_ADDRESS = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})")
_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH)
_ANYWHERE = ("0.0.0.0", "[::]")  # noqa: S104 - recognised, not bound


class Resolver:
    """Asks prefill instances for their endpoint."""

    def __init__(self, timeout_s: float, refused_s: float) -> None:
        self._timeout_s = timeout_s
        self._refused_s = refused_s
        self._free = threading.Semaphore(MAX_QUESTIONS)
        self._closed = threading.Event()

    def look_up(
        self, host: str, port: int, found: Callable[[Endpoint], None], not_found: Callable[[str], None]
    ) -> None:
        """Ask until an answer comes, up to `timeout_s`.

        A host that refuses connections or has no route counts as gone after `refused_s`, and a name that does not
        exist at once. One of the callbacks is called, on another thread.
        """
        if not self._free.acquire(blocking=False):
            not_found(f"more than {MAX_QUESTIONS} prefill instances are being looked for")
            return
        self._start(lambda: self._ask(host, port, found, not_found))

    def probe(self, address: str, gone: Callable[[], None]) -> None:
        """Call `gone`, on another thread, if the address refuses connections: its process has ended."""
        if self._free.acquire(blocking=False):
            self._start(lambda: gone() if refuses(address) else None)

    def close(self) -> None:
        """Let running questions end without an answer."""
        self._closed.set()

    def _start(self, question: Callable[[], None]) -> None:
        def run() -> None:
            try:
                question()
            finally:
                self._free.release()

        threading.Thread(target=run, name="bootstrap", daemon=True).start()

    def _ask(self, host: str, port: int, found: Callable[[Endpoint], None], not_found: Callable[[str], None]) -> None:
        start = time.monotonic()
        while not self._closed.is_set():
            try:
                found(ask_once(host, port))
                return
            except (OSError, http.client.HTTPException) as error:
                reason, limit_s = self._judge(error)
            except (msgspec.MsgspecError, ValueError) as error:
                not_found(f"{host}:{port} is not a prefill instance: {error}")
                return
            if time.monotonic() - start >= limit_s:
                not_found(f"no prefill instance at {host}:{port}: {reason}")
                return
            self._closed.wait(PAUSE_S)

    def _judge(self, error: Exception) -> tuple[str, float]:
        """What a failed attempt means, and how long it is worth trying again, in seconds from the first."""
        if isinstance(error, socket.gaierror):
            reason = f"the name cannot be resolved ({error.strerror})"
            return reason, self._refused_s if error.errno == socket.EAI_AGAIN else 0.0
        if isinstance(error, ConnectionRefusedError):
            return "nobody listens there", self._refused_s
        is_unreachable = isinstance(error, OSError) and error.errno in _UNREACHABLE
        return str(error) or type(error).__name__, self._refused_s if is_unreachable else self._timeout_s


def ask_once(host: str, port: int) -> Endpoint:
    """One `GET`. Raises OSError or HTTPException when it should be tried again, ValueError when it is of no use."""
    connection = http.client.HTTPConnection(host, port, timeout=ATTEMPT_S)
    try:
        connection.request("GET", PATH)
        response = connection.getresponse()
        body = response.read(MAX_ANSWER_BYTES)
    finally:
        connection.close()
    if response.status == 404:
        raise ValueError(f"it does not serve {PATH}")
    if response.status != 200:
        raise http.client.HTTPException(f"it answered {response.status}")
    endpoint = decode_endpoint(body)
    match = _ADDRESS.fullmatch(endpoint.address)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ValueError(f"its control address {endpoint.address!r} is not tcp://host:port")
    if match[1] in _ANYWHERE:
        bracketed = f"[{host}]" if ":" in host else host
        return msgspec.structs.replace(endpoint, address=f"tcp://{bracketed}:{match[2]}")
    return endpoint


def refuses(address: str) -> bool:
    """Whether nothing listens at the address; false when that cannot be known, such as for a silent host."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ATTEMPT_S).close()
    except OSError as error:
        return error.errno == errno.ECONNREFUSED
    return False
