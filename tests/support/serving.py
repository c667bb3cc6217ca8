"""Start instances of the server for tests, as users do, and end them."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from stack.models.tiny import TEXT_CONFIG
from stack.models.tiny_tokenizer import write_tokenizer

ROOT = Path(__file__).parents[2]
SCRIPTED = "tests.support.scripted_worker"


def write_model(folder: Path, script: dict[str, Any] | None = None) -> Path:
    """A model folder without weights: geometry and tokenizer, and the scripted worker's script."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "glm5_next", "architectures": ["Scripted"], "text_config": TEXT_CONFIG}
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    (folder / "script.json").write_text(json.dumps(script or {}))
    return folder


class Server:
    """A running `python -m stack.server`; its standard error is collected in `log`."""

    def __init__(self, folder: Path, settings: dict[str, Any], worker: str = SCRIPTED) -> None:
        self.folder = folder
        self.log: list[str] = []
        file = folder / "instance.json"
        file.write_text(json.dumps({"model": {"path": str(folder)}, "server": {"port": 0}}))
        sets = [text for path, value in settings.items() for text in ("--set", f"{path}={json.dumps(value)}")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stack.server", str(file), "--worker-module", worker, *sets],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        """Base URL, once it listens."""
        return str(self.wait_for(r"listening on (http://\S+?),").group(1))

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def worker_pid(self) -> int:
        return int(self.wait_for(r"in process (\d+)").group(1))

    def heard(self) -> list[dict[str, Any]]:
        """What the scripted worker has heard."""
        file = self.folder / "heard.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def hears(self, kind: str, timeout_s: float = 30.0) -> dict[str, Any]:
        """The last message of a kind, once there is one. Raises AssertionError when none comes."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := [message for message in self.heard() if message["type"] == kind]:
                return found[-1]
            time.sleep(0.02)
        raise AssertionError(f"the worker heard no {kind!r}")

    def wait_for(self, pattern: str, timeout_s: float = 30.0) -> re.Match[str]:
        """The first match in the log. Raises AssertionError when it does not come."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := re.search(pattern, "\n".join(self.log)):
                return found
            if self.process.poll() is not None:
                self._reader.join(2)
                if found := re.search(pattern, "\n".join(self.log)):
                    return found
                break
            time.sleep(0.01)
        raise AssertionError(f"no {pattern!r} in the log:\n" + "\n".join(self.log))

    def wait_ready(self, timeout_s: float = 60.0) -> "Server":
        self.wait_for(r"ready after", timeout_s)
        return self

    def wait_exit(self, timeout_s: float = 20.0) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(2)
        return code

    def is_healthy(self) -> bool:
        return httpx.get(f"{self.url}/health").status_code == 200

    def stop(self) -> None:
        """End it, by force if it must be."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))


@contextlib.contextmanager
def serving(
    folder: Path,
    script: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    worker: str = SCRIPTED,
) -> Iterator[Server]:
    """A server over a scripted worker, ready, and stopped at the end."""
    server = Server(write_model(folder, script), settings or {}, worker)
    try:
        yield server.wait_ready()
    finally:
        server.stop()
