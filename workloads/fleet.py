"""The processes of a client: one runs in place, more are children that start together and report back.

One process carries about 256 streams; beyond that its event loop would measure itself. Children build their own prompts
from the same seeds, so nothing large travels.
"""

import asyncio
import functools
import math
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import Any, Protocol

import uvloop

from workloads.records import Phase
from workloads.share import Share, ShareResult
from workloads.spec import SpecError, Workload, parse
from workloads.stream import now_s

STREAMS_PER_PROCESS = 256
_LEAD_S = 0.2
"""From the order to start until the start, so that everybody is there."""
_ALONE_S = 0.05
"""The same for one process, which waits for itself alone."""

Progress = Callable[[int, int, int], None]
"""Requests done, failed, tokens seen so far in this pass."""


class Fleet(Protocol):
    """All processes of a client."""

    num_processes: int

    async def build(self, pass_index: int, phases: tuple[Phase, ...]) -> float:
        """Build a pass; returns the seconds it took."""
        ...

    async def run(self, progress: Progress) -> list[ShareResult]:
        """Run the pass built last."""
        ...

    def stop(self, kind: str, sentence: str) -> None:
        """End the running pass early."""
        ...

    def close(self) -> None:
        """Let the children go."""
        ...


def fleet_for(workload: Workload, url: str, processes: int | None) -> Fleet:
    """One process in place, or as many children as the streams need."""
    count = processes or max(1, math.ceil((workload.concurrency or 1) / STREAMS_PER_PROCESS))
    return SingleProcess(workload, url) if count == 1 else ManyProcesses(workload, url, count)


def check_open_files(workload: Workload) -> int:
    """Raise the limit on open files as far as allowed and needed; returns it. Raises SpecError when too low."""
    need = (workload.concurrency or 1024) + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < need <= hard or (hard == resource.RLIM_INFINITY and soft < need):
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
        soft = need
    if soft < need:
        raise SpecError(f"{need} connections need more than {soft} open files; raise `ulimit -n` to {need}")
    return soft


class SingleProcess:
    """The client in this process."""

    num_processes = 1

    def __init__(self, workload: Workload, url: str) -> None:
        self._share = Share(workload, url)

    async def build(self, pass_index: int, phases: tuple[Phase, ...]) -> float:
        """Build a pass."""
        return self._share.build(pass_index, phases)

    async def run(self, progress: Progress) -> list[ShareResult]:
        """Run the pass built last."""
        ticker = asyncio.create_task(_tick(self._share, progress))
        try:
            return [await self._share.run(now_s() + _ALONE_S)]
        finally:
            ticker.cancel()

    def stop(self, kind: str, sentence: str) -> None:
        """End the running pass early."""
        self._share.stop(kind, sentence)

    def close(self) -> None:
        """Nothing to let go."""


class ManyProcesses:
    """Children of this process, each with its share."""

    def __init__(self, workload: Workload, url: str, count: int) -> None:
        self.num_processes = count
        spawn = multiprocessing.get_context("spawn")
        self._remaining: Any = spawn.Value("q", 0)
        self._measured = workload.num_measured
        self._pipes: list[Connection] = []
        self._children = []
        self._readers = ThreadPoolExecutor(max_workers=count)
        text = workload.model_dump_json()
        for index in range(count):
            ours, theirs = spawn.Pipe()
            child = spawn.Process(target=_child, args=(theirs, text, url, index, count, self._remaining), daemon=True)
            child.start()
            theirs.close()
            self._pipes.append(ours)
            self._children.append(child)

    async def build(self, pass_index: int, phases: tuple[Phase, ...]) -> float:
        """Build a pass in every child at once."""
        for pipe in self._pipes:
            pipe.send(("build", pass_index, phases))
        built = [await self._receive(pipe) for pipe in self._pipes]
        self._remaining.value = sum(measured for _, measured in built)
        return max(seconds for seconds, _ in built)

    async def run(self, progress: Progress) -> list[ShareResult]:
        """Start all children at the same moment and collect their results."""
        start = now_s() + _LEAD_S
        for pipe in self._pipes:
            pipe.send(("run", start))
        counts = [(0, 0, 0)] * self.num_processes

        def note(index: int, count: tuple[int, int, int]) -> None:
            counts[index] = count
            progress(*(sum(column) for column in zip(*counts, strict=True)))

        waits = [self._receive(pipe, functools.partial(note, i)) for i, pipe in enumerate(self._pipes)]
        return list(await asyncio.gather(*waits))

    def stop(self, kind: str, sentence: str) -> None:
        """End the running pass early, in every child."""
        for pipe in self._pipes:
            pipe.send(("stop", kind, sentence))

    def close(self) -> None:
        """End the children."""
        for pipe in self._pipes:
            pipe.close()
        for child in self._children:
            child.join(timeout=5)
            if child.is_alive():
                child.kill()
        self._readers.shutdown(wait=False)

    async def _receive(self, pipe: Connection, note: Callable[[tuple[int, int, int]], None] | None = None) -> Any:
        loop = asyncio.get_running_loop()
        while True:
            try:
                kind, value = await loop.run_in_executor(self._readers, pipe.recv)
            except EOFError as error:
                raise RuntimeError("a client process died; see its message above") from error
            if kind == "progress":
                if note is not None:
                    note(value)
            elif kind == "refused":
                raise SpecError(value)
            else:
                return value


class _SharedRemaining:
    """The count that all children share."""

    def __init__(self, value: "Synchronized[int]") -> None:
        self._value = value

    def take(self) -> None:
        """One more has ended."""
        with self._value.get_lock():
            self._value.value -= 1

    def is_positive(self) -> bool:
        """Whether any is left."""
        return self._value.value > 0


def _child(pipe: Connection, text: str, url: str, index: int, count: int, remaining: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, and tells its children
    try:
        share = Share(parse(text), url, index=index, count=count, remaining=_SharedRemaining(remaining))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(share, pipe))
    except SpecError as error:
        pipe.send(("refused", str(error)))
    except (EOFError, BrokenPipeError):
        os._exit(0)


async def _serve(share: Share, pipe: Connection) -> None:
    orders: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        try:
            while True:
                order = pipe.recv()
                loop.call_soon_threadsafe(share.stop if order[0] == "stop" else orders.put_nowait, *_arguments(order))
        except (EOFError, OSError):
            os._exit(0)  # the parent is gone, and so is every reason to go on

    threading.Thread(target=listen, daemon=True).start()
    while True:
        order = await orders.get()
        if order[0] == "build":
            seconds = share.build(order[1], order[2])
            measured = sum(t.phase == "measured" for talk in share.talks for t in talk)
            pipe.send(("built", (seconds, measured)))
        else:
            ticker = asyncio.create_task(_tick(share, lambda *count: pipe.send(("progress", count))))
            result = await share.run(order[1])
            ticker.cancel()
            pipe.send(("result", result))


def _arguments(order: tuple[Any, ...]) -> tuple[Any, ...]:
    return order[1:] if order[0] == "stop" else (order,)


async def _tick(share: Share, progress: Progress) -> None:
    while True:
        await asyncio.sleep(0.5)
        progress(share.traffic.num_done, share.traffic.num_failed, share.traffic.num_tokens)
