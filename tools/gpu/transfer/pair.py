"""A prefill and a decode instance without a router; every request goes to both. Knows nothing of what is measured."""

import http.client
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

READY_S = 300.0
_ROOMS = itertools.count(int.from_bytes(os.urandom(5)))


class Server:
    """One `python -m stack.server`; its standard error goes to a log and is looked at for the port."""

    def __init__(self, name: str, settings: Path, log: Path, gpu: str) -> None:
        command = [sys.executable, "-m", "stack.server", str(settings), "--set", "server.port=0"]
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu} if gpu else None
        self.name, self.port, self._log = name, 0, log
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self) -> None:
        """Raises RuntimeError with the last lines of its log when it ends or takes too long."""
        until = time.monotonic() + READY_S
        while not (self.port and self.ask("GET", "/health")[0] == 200):
            if self._process.poll() is not None or time.monotonic() > until:
                self._reader.join(1.0)
                last = "\n".join(self._log.read_text().splitlines()[-12:])
                raise RuntimeError(f"{self.name} did not become ready:\n{last}")
            time.sleep(0.2)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of one request; status 0 where nobody listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120.0)
        try:
            headers = {"content-type": "application/json"}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()
        except OSError:
            return 0, None
        finally:
            connection.close()

    def stop(self) -> None:
        """Drain, or kill after ten seconds."""
        self._process.terminate()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stderr
        with self._log.open("w") as log:
            for line in self._process.stderr:
                log.write(line)
                log.flush()
                if "listening on " in line:
                    self.port = int(line.split("listening on ")[1].split(",")[0].rsplit(":", 1)[1])


class Pair:
    """Both instances, each on its GPU (`""`: no GPU)."""

    def __init__(self, folder: Path, settings: dict[str, dict[str, Any]], gpus: tuple[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for role, tree in settings.items():
            (folder / f"{role}.json").write_text(json.dumps(tree))
        self.servers = {
            role: Server(role, folder / f"{role}.json", folder / f"{role}.log", gpu)
            for role, gpu in zip(("prefill", "decode"), gpus, strict=True)
        }
        self._pool = ThreadPoolExecutor(32)

    def __enter__(self) -> "Pair":
        try:
            for server in self.servers.values():
                server.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for server in self.servers.values():
            server.stop()
        self._pool.shutdown(wait=False)

    def flush(self) -> None:
        """Empty both caches. Raises RuntimeError when one refuses."""
        for server in self.servers.values():
            status, body = server.ask("POST", "/flush_cache?timeout=20")
            if status != 200:
                raise RuntimeError(f"{server.name} did not flush: {status} {body}")

    def generate(self, prompts: list[list[int]], *, at_once: int, num_new: int = 2) -> list[dict[str, Any]]:
        """`meta_info` of each answer of decode, `at_once` requests in flight. Raises RuntimeError for a failed one."""
        gate = threading.Semaphore(at_once)

        def one(prompt: list[int]) -> dict[str, Any]:
            with gate:
                return self._one(prompt, num_new)

        return list(self._pool.map(one, prompts))

    def _one(self, prompt: list[int], num_new: int) -> dict[str, Any]:
        body = {
            "input_ids": prompt,
            "sampling_params": {"max_new_tokens": num_new, "temperature": 0.0, "ignore_eos": True},
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.servers["prefill"].port,
            "bootstrap_room": next(_ROOMS),
        }
        answers: dict[str, tuple[int, Any]] = {}
        ask = [
            threading.Thread(target=lambda s=server: answers.update({s.name: s.ask("POST", "/generate", body)}))
            for server in self.servers.values()
        ]
        for thread in ask:
            thread.start()
        for thread in ask:
            thread.join()
        for name, (status, answer) in answers.items():
            if status != 200:
                raise RuntimeError(f"{name} answered {status}: {answer}")
        meta: dict[str, Any] = answers["decode"][1]["meta_info"]
        return meta
