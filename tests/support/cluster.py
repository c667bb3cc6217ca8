"""Prefill instances, a decode instance and the real Rust router on fixed ports; any may be killed and restarted.

`Ask` is one request and what became of it. An answer is `exact` (finished, with the wanted tokens), `clean` (an error
status, or a broken connection after a correct beginning) or `wrong`.
"""

import contextlib
import http.client
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson

from tests.support.routing import START, free_port
from tests.support.serving import Server

EXACT = {
    "model.compute_dtype": "float32",
    "cache.kv_dtype": "float32",
    "cache.index_dtype": "float32",
    "cache.conv_dtype": "float32",
    "cache.expected_context": 2048,
    "cache.expected_output": 128,
    "cache.budget_bytes": 200 * 2**20,
}
_ROOMS = itertools.count(random.SystemRandom().randrange(2**40))


def new_room() -> int:
    return next(_ROOMS)


Wanted = tuple[list[int], str]
"""Tokens and text of an undisturbed answer."""


class Instance:
    """One instance that keeps its port over restarts."""

    def __init__(self, folder: Path, role: str, settings: dict[str, Any]) -> None:
        self.folder, self.role, self.port = folder, role, free_port()
        self.settings = EXACT | settings | {"role": role, "server.port": self.port}
        self.url = f"http://127.0.0.1:{self.port}"
        self.exit_codes: list[int] = []
        self.server = self._start()

    def _start(self) -> Server:
        return Server(self.folder, self.settings, worker="stack.engine")

    def wait_ready(self, timeout_s: float = 180.0) -> "Instance":
        self.server.wait_ready(timeout_s)
        return self

    @property
    def is_alive(self) -> bool:
        return self.server.process.poll() is None

    def signal(self, number: int, *, worker: bool = True, http: bool = True) -> None:
        pids = [self.server.worker_pid] * worker + [self.server.process.pid] * http
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait_dead(self, timeout_s: float = 30.0) -> int:
        """The server's exit code once it and its worker are gone."""
        worker = self.server.worker_pid
        code = self.server.wait_exit(timeout_s)
        deadline = time.monotonic() + timeout_s
        while Path(f"/proc/{worker}").exists():
            assert time.monotonic() < deadline, "the worker outlived its instance"
            time.sleep(0.02)
        self.exit_codes.append(code)
        return code

    def restart(self) -> None:
        """Start again on the same port, with the same settings."""
        self.server = self._start()
        self.wait_ready()

    def gauges(self) -> dict[str, float]:
        """The instance's own gauges, without their prefix."""
        lines = httpx.get(f"{self.url}/metrics", timeout=10).text.splitlines()
        own = (line for line in lines if line.startswith("np1d_"))
        return {line.split("{")[0].removeprefix("np1d_"): float(line.rsplit(" ", 1)[1]) for line in own}


@dataclass
class Ask:
    """One request under way; `text` and `num_seen` grow while it streams, `tokens` come with the end."""

    prompt: list[int]
    num_tokens: int
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    num_seen: int = 0
    status: int = 0
    error: str = ""
    finish: str = ""
    is_finished: bool = False
    has_left: bool = False
    started_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    rid: str = field(default_factory=lambda: os.urandom(8).hex())
    sockets: list[socket.socket] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def verdict(self, wanted: Wanted) -> str:
        """Against an undisturbed answer of at least as many tokens."""
        if self.is_finished:
            is_equal = self.tokens == wanted[0][: self.num_tokens] and self._begins(wanted[1])
            return "exact" if is_equal and self.finish == "length" else "wrong"
        begins = self._begins(wanted[1]) if self.finish == "abort" else wanted[1].startswith(self.text)
        return "clean" if self.error and begins else "wrong"

    def _begins(self, wanted: str) -> bool:
        """Whether a text that the server ended begins `wanted`: a character that its last token left unfinished reads
        U+FFFD."""
        return wanted.startswith(self.text) or (
            self.text.endswith("\ufffd") and wanted.startswith(self.text.removesuffix("\ufffd"))
        )

    def hang_up(self) -> None:
        """Leave without a word, as a client does that is killed."""
        self.has_left = True
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def wait(self, timeout_s: float = 90.0) -> "Ask":
        deadline = time.monotonic() + timeout_s
        for thread in self.threads:
            thread.join(max(deadline - time.monotonic(), 0.1))
            assert not thread.is_alive(), f"no end after {timeout_s} s: {self.num_seen} tokens, {self.status}"
        return self


class Cluster:
    """`num_prefill` prefill instances, one decode instance and a router."""

    def __init__(self, folder: Path, model: Path, num_prefill: int, settings: dict[str, Any]) -> None:
        self._log = (folder / "router.log").open("ab")
        prefix = {"cache.prefix": "hybrid_radix"}
        self.prefills = [Instance(model, "prefill", settings | prefix) for _ in range(num_prefill)]
        self.decode = Instance(model, "decode", settings | {"cache.prefix": "kv_radix"})
        self.port, self._prometheus = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.router: subprocess.Popen[bytes] | None = None
        for instance in self.instances:
            instance.wait_ready()

    @property
    def instances(self) -> list[Instance]:
        return [*self.prefills, self.decode]

    def start_router(self, form: str = "rust") -> None:
        command = [sys.executable, "-c", START, "--pd-disaggregation"]
        for prefill in self.prefills:
            command += ["--prefill", prefill.url, str(prefill.port)]
        command += ["--decode", self.decode.url, "--host", "127.0.0.1", "--port", str(self.port)]
        if form == "mini-lb":
            command += ["--mini-lb"]
        else:
            command += ["--policy", "round_robin", "--prometheus-port", str(self._prometheus)]
            command += ["--disable-circuit-breaker", "--health-check-interval-secs", "1"]
            command += ["--health-failure-threshold", "2", "--health-success-threshold", "1"]
        self.router = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self.wait_routed(form)

    def wait_routed(self, form: str = "rust", timeout_s: float = 90.0) -> None:
        """Return when the router knows every instance."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.router is not None and self.router.poll() is None, "the router ended"
            with contextlib.suppress(httpx.HTTPError):
                if form == "mini-lb" and httpx.get(f"{self.url}/health").status_code == 200:
                    return
                if form != "mini-lb":
                    seen = httpx.get(f"{self.url}/readiness", timeout=5).json()
                    if seen.get("healthy_workers") == len(self.instances):
                        return
            time.sleep(0.1)
        raise AssertionError("the router does not see every instance")

    def stop_router(self, number: int = signal.SIGTERM) -> None:
        if self.router is not None and self.router.poll() is None:
            self.router.send_signal(number)
            try:
                self.router.wait(10)
            except subprocess.TimeoutExpired:
                self.router.kill()
                self.router.wait()

    def close(self) -> None:
        self.stop_router()
        for instance in self.instances:
            instance.signal(signal.SIGCONT)
            instance.server.stop()
        self._log.close()

    def ask(self, prompt: list[int], num_tokens: int, *, stream: bool = True) -> Ask:
        """Through the router, on a thread."""
        ask = Ask(prompt, num_tokens)
        ask.threads.append(_thread(_converse, ask, self.url, {}, stream))
        return ask

    def ask_pair(
        self,
        prefill: Instance,
        prompt: list[int],
        num_tokens: int,
        *,
        only: Instance | None = None,
        prefill_prompt: list[int] | None = None,
        stream: bool = True,
        **changes: Any,
    ) -> Ask:
        """To one prefill and the decode instance directly, as the router does; the answer is decode's.

        `only` leaves the other instance out; the answer is then that instance's.
        """
        ask = Ask(prompt, num_tokens)
        meeting = {"bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.port, "bootstrap_room": new_room()}
        meeting |= changes
        if only is not self.decode:
            first_half = ask if only else Ask(prefill_prompt or prompt, num_tokens, rid=ask.rid)
            ask.threads.append(_thread(_converse, first_half, prefill.url, meeting, False))
        if only is not prefill:
            ask.threads.append(_thread(_converse, ask, self.decode.url, meeting, stream))
        return ask

    def wait_empty(self, timeout_s: float = 30.0) -> None:
        """Return when no instance holds memory for a request."""
        names = ("running", "waiting", "prefilling", "inflight", "swapped", "pages_used", "slots_used", "disagg_rooms")
        deadline = time.monotonic() + timeout_s
        while True:
            held = [
                (instance.role, name, value)
                for instance in self.instances
                for name, value in instance.gauges().items()
                if name in names and value
            ]
            if not held:
                return
            assert time.monotonic() < deadline, f"still held after {timeout_s} s: {held}"
            time.sleep(0.1)


def _thread(work: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def _converse(ask: Ask, url: str, meeting: dict[str, Any], stream: bool) -> None:
    body = {
        "input_ids": ask.prompt,
        "rid": ask.rid,
        "stream": stream,
        "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": ask.num_tokens},
    } | meeting
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=90)
    try:
        connection.connect()
        ask.sockets.append(connection.sock)
        connection.request("POST", "/generate", orjson.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        ask.status = answer.status
        if answer.status != 200:
            ask.error = answer.read().decode()
        elif stream:
            _listen(ask, answer)
        else:
            event = orjson.loads(answer.read())
            ask.tokens, ask.text, ask.is_finished = event["output_ids"], event["text"], True
            ask.finish = event["meta_info"]["finish_reason"]["type"]
    except (OSError, http.client.HTTPException) as error:
        ask.error = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
        ask.ended_s = time.monotonic()


def _listen(ask: Ask, answer: http.client.HTTPResponse) -> None:
    while line := answer.readline().decode().strip("\r\n") or answer.fp:
        if line == "data: [DONE]":
            ask.is_finished = True
            return
        if isinstance(line, str) and line.startswith("data: "):
            event = orjson.loads(line.removeprefix("data: "))
            ask.text, ask.num_seen = event["text"], event["meta_info"]["completion_tokens"]
            ask.tokens = event.get("output_ids", ask.tokens)
            finish = event["meta_info"]["finish_reason"]
            ask.finish = finish["type"] if finish else ""
            if finish and finish["type"] == "abort":
                ask.error = finish["message"]
                return
    ask.error = "the stream ended without its end"
