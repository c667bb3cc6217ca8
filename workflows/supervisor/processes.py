"""Starting processes so that none can outlive the session, and ending all of them.

The supervisor becomes the reaper of every descendant, so that a process that detached itself still comes back to it.
Each process has a process group of its own: Ctrl-C on the terminal reaches the supervisor alone, which then stops them
in order. None has a session of its own: Linux may schedule every session as one unit (autogroup) and then lets a load
client, which sleeps most of the time, wait for 50 to 275 ms behind servers of other sessions. A server gets SIGTERM
from the kernel when the supervisor dies, however it dies.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Adopt every orphaned descendant of this process from now on."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this kernel does not let a process adopt its orphans")


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel for a signal when the parent dies; nothing else would tell a supervisor of it."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def start(command: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path) -> "subprocess.Popen[bytes]":
    """Start one process with its output in `log`. Raises OSError when the program cannot be executed."""
    parent = os.getpid()

    def before_exec() -> None:
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)

    with log.open("ab") as output:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            cwd=cwd,
            process_group=0,
            preexec_fn=before_exec,
        )


def descendants() -> list[psutil.Process]:
    """Every living process below this one, adopted orphans included; zombies are reaped on the way."""
    living = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                _reap(process.pid)
            else:
                living.append(process)
    return living


def end_all(first: Iterable[int] = (), *, grace_s: float, others_grace_s: float | None = None) -> list[str]:
    """Ask every descendant to end, those named first before the others and parents before their children, which a
    server ends itself; then kill what is left.

    Returns the command lines of processes that had to be killed. Afterwards none is alive.
    """
    _ask([process for pid in first if (process := _process(pid))], grace_s)
    others_grace_s = grace_s if others_grace_s is None else others_grace_s
    _ask(_children(), others_grace_s)
    _ask(descendants(), others_grace_s)
    killed = []
    until = time.monotonic() + grace_s
    while left := descendants():
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                killed.append(f"{process.pid} {' '.join(process.cmdline()[:6])}")
                process.kill()
        psutil.wait_procs(left, timeout=1.0)
        if time.monotonic() > until:
            raise RuntimeError(f"processes cannot be killed: {', '.join(str(p.pid) for p in left)}")
    return sorted(set(killed))


def identity(process: psutil.Process) -> dict[str, float]:
    """What names a process for good: its number alone is given to another one later."""
    return {"pid": process.pid, "started": process.create_time()}


def same_process(recorded: Mapping[str, float]) -> psutil.Process | None:
    """The living process of that identity, if it still is the same one."""
    process = _process(int(recorded["pid"]))
    try:
        if process and abs(process.create_time() - recorded["started"]) < 0.05:
            return process if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        pass
    return None


def _ask(processes: Sequence[psutil.Process], grace_s: float) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(list(processes), timeout=grace_s)


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def _children() -> list[psutil.Process]:
    me = os.getpid()
    found = []
    for process in descendants():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.ppid() == me:
                found.append(process)
    return found


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
