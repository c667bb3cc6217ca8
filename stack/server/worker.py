"""The worker process: started as a child that cannot outlive this process, watched, and ended.

Knows nothing of what it computes. Its standard error is passed on line by line, and the last one is kept for the
sentence that says how it died, where it was written shortly before.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

LAST_WORDS_S = 10.0
"""A line is the reason of an exit when it came at most so long before: tearing a process down may take seconds."""
LAST_LINE_S = 2.0
"""A line is worth telling beside a signal when it came at most so long before and the process brought it on itself."""
OWN_FAULTS = frozenset({signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP})
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class Worker:
    """A running child process in its own process group, so that a Ctrl-C reaches it only through us.

    Its session is ours: Linux may schedule every session as one unit, and measured processes are to be scheduled alike.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._last_line, self._last_line_s = "", 0.0
        self._ended_s: float | None = None
        self._reader = asyncio.create_task(self._pass_on())

    @classmethod
    async def start(cls, module: str, config_file: Path, address: str) -> "Worker":
        """Run `python -m module config_file --address address`."""
        parent = os.getpid()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, str(config_file), "--address", address),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=lambda: _begin(parent),
            limit=2**20,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """Process id, also of its process group."""
        return self._process.pid

    async def wait(self) -> int:
        """Exit code, once it has ended and all it wrote was passed on; negative for a signal."""
        code = await self._process.wait()
        self._ended_s = self._ended_s or time.monotonic()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._reader), 1.0)
        return code

    def obituary(self, code: int) -> str:
        """One sentence on its death, once it has ended.

        A line that it wrote long before, or before a signal that came from outside, has nothing to do with it.
        """
        line, age_s = self._last_line, max((self._ended_s or 0.0) - self._last_line_s, 0.0)
        if code >= 0:
            words = f": {line}" if line and age_s <= LAST_WORDS_S else ""
            return f"the worker process ended with exit code {code}{words}"
        words = ""
        if code == -signal.SIGKILL:
            words = ", by hand or by the kernel for want of memory"
        elif -code in OWN_FAULTS and line and age_s <= LAST_LINE_S:
            words = f"; the last line of its log, {age_s:.1f} s before: {line}"
        return f"the worker process was killed by {_signal_name(-code)}{words}"

    async def stop(self, grace_s: float) -> int:
        """Wait `grace_s` for it to end by itself, then end it and whatever it started. Returns the exit code."""
        for number, wait_s in ((None, grace_s), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            if number is not None and self._process.returncode is None:
                self._signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._process.wait()), wait_s)
                break
        self._signal(signal.SIGKILL)  # what it left behind in its group
        return await self.wait()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def _pass_on(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # a line beyond the limit: its beginning is gone, the rest follows
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip("\n")
            if text.strip():
                self._last_line, self._last_line_s = text.strip(), time.monotonic()
            sys.stderr.write(f"[worker] {text}\n")
            sys.stderr.flush()


def _signal_name(number: int) -> str:
    names = {known.value: known.name for known in signal.Signals}
    return names.get(number, f"signal {number}")


def _begin(parent: int) -> None:
    """In the child: a process group of its own, and death when the parent dies, also when it died just now."""
    os.setpgid(0, 0)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
