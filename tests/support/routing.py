"""Start the real router in front of a prefill and a decode instance, in either of its forms."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx

from tests.support.serving import Server

# The router's optional tracing would load the whole of another engine where that is installed; it is left out.
START = "import sys; sys.modules['sglang'] = None; from sglang_router.launch_router import main; main()"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def routing(prefill: Server, decode: Server, *, form: str) -> Iterator[str]:
    """The URL of a router that has seen both workers."""
    port = free_port()
    command = [
        *(sys.executable, "-c", START, "--pd-disaggregation"),
        *("--prefill", prefill.url, str(prefill.port), "--decode", decode.url),
        *("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())),
        *(["--mini-lb"] if form == "mini-lb" else ["--policy", "round_robin"]),
    ]
    router = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_it_serves(router, url, form)
        yield url
    finally:
        router.terminate()
        try:
            router.wait(5)
        except subprocess.TimeoutExpired:
            router.kill()
            router.wait()


def wait_until_it_serves(router: subprocess.Popen[bytes], url: str, form: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert router.poll() is None, "the router ended"
        with contextlib.suppress(httpx.HTTPError):
            if form == "mini-lb":
                if httpx.get(f"{url}/health").status_code == 200:
                    return
            elif httpx.get(f"{url}/readiness").json().get("healthy_workers") == 2:
                return
        time.sleep(0.1)
    raise AssertionError("the router did not find both workers")
