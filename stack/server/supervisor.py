"""The life of one instance: start the worker, serve, drain or fail, and leave nothing behind.

The exit code says how it went: 0 after a drain, 2 when the worker refused its configuration, 1 for everything else.
"""

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

from stack.config import EngineConfig, to_dict
from stack.server.app import build_app
from stack.server.instance import Instance
from stack.server.link import Link
from stack.server.listener import Listener
from stack.server.worker import Worker

_PROGRESS_S = 5.0
_FAREWELL_S = 10.0
_LAST_WORDS_S = 2.0


def say(message: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"np1d: {message}\n")
    sys.stderr.flush()


async def supervise(config: EngineConfig, listener: socket.socket, worker_module: str) -> int:
    """Run one instance on `listener` until it is drained, stopped or broken. Returns the exit code."""
    instance = Instance(config)
    folder = Path(tempfile.mkdtemp(prefix="np1d-"))
    try:
        link = Link(folder, instance.handle)
        instance.link = link
        config_file = folder / "config.json"
        config_file.write_text(json.dumps(to_dict(config)))
        worker = await Worker.start(worker_module, config_file, link.address)
        try:
            return await _Run(instance, worker, listener).until_over()
        finally:
            link.close()
            await worker.stop(0.0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    """The tasks of a running instance: listener, worker, signals."""

    def __init__(self, instance: Instance, worker: Worker, listener: socket.socket) -> None:
        self._instance = instance
        self._worker = worker
        self._listener = listener
        self._server = Listener(build_app(instance))
        self._forced = asyncio.Event()

    async def until_over(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        say(f"listening on {_url(self._listener)}, loading the model in process {self._worker.pid}")
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        died = asyncio.create_task(self._worker.wait())
        loading = asyncio.create_task(self._report_loading())
        asked = asyncio.create_task(self._instance.drain_asked.wait())
        failed = asyncio.create_task(self._instance.has_failed.wait())
        try:
            await asyncio.wait((died, asked, failed, serving), return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                await self._worker.stop(_LAST_WORDS_S)
            code = await self._drain(died) if asked.done() else self._bury(await died)
            self._server.should_exit = True
            await serving
            return code
        finally:
            for task in (serving, died, loading, asked, failed):
                task.cancel()

    async def _report_loading(self) -> None:
        started_s = time.monotonic()
        while self._instance.phase == "loading":
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._instance.until_ready(), _PROGRESS_S)
                say(f"ready after {time.monotonic() - started_s:.1f} s on {_url(self._listener)}")
                return
            say(f"still loading after {time.monotonic() - started_s:.0f} s")

    async def _drain(self, died: asyncio.Task[int]) -> int:
        """Finish what runs, then end the worker; a second signal cuts it short, a dead worker too."""
        instance = self._instance
        say(f"draining: {len(instance.generations)} requests are running; a second signal ends them")
        drained = asyncio.create_task(instance.drain())
        forced = asyncio.create_task(self._forced.wait())
        await asyncio.wait((drained, forced, died), return_when=asyncio.FIRST_COMPLETED)
        is_clean = drained.done() and not drained.exception()
        drained.cancel()
        forced.cancel()
        if is_clean:
            instance.link.end_calls("this instance has been drained")
            await self._worker.stop(_FAREWELL_S if instance.ready else 0.0)
            say("drained")
            return 0
        if died.done():
            return self._bury(died.result())
        say(f"stopped: {len(instance.generations)} requests were ended")
        instance.abort_all("this instance was stopped")
        return 1

    def _bury(self, code: int) -> int:
        """The worker has ended without being asked to."""
        while_loading = " while loading" if self._instance.phase == "loading" else ""
        sentence = self._instance.failure or self._worker.obituary(code)
        self._instance.fail(sentence)
        self._instance.link.end_calls(sentence)
        say(f"error{while_loading}: {sentence}")
        return 2 if code == 2 else 1

    def _signalled(self) -> None:
        if self._instance.drain_asked.is_set():
            self._forced.set()
        self._instance.drain_asked.set()


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
