"""One measurement at a time on a machine, and nothing left over from sessions that were killed.

State lives in a folder of the user's own under the temporary directory. A record there names the supervisor and its
descendants by number and start time; who is gone and left processes behind is swept at the next start, never by name.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from workflows.errors import SessionError
from workflows.supervisor.processes import identity, same_process
from workloads.files import read_json, write_json


def state_folder() -> Path:
    """The user's own folder for locks and records of running sessions."""
    folder = Path(tempfile.gettempdir()) / f"np1d-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise SessionError(
            "state_folder", f"{folder} belongs to another user; remove it or set another temporary directory"
        )
    return folder


@contextlib.contextmanager
def measuring(
    folder: Path, what: str, *, wait_s: float, say: Callable[[str], None], interrupted: Callable[[], None]
) -> Iterator[int]:
    """Hold the machine for one session, or for one pair of them. Raises SessionError when others hold it for `wait_s`.

    Yields the open lock's number: a session that inherits it belongs to the pair, which `inherited` tells.
    """
    path = folder / "measuring.lock"
    with path.open("a+") as handle:
        _acquire(handle, path, wait_s, say, interrupted)
        handle.truncate(0)
        handle.write(f"{os.getpid()} {what}")
        handle.flush()
        try:
            yield handle.fileno()
        finally:
            handle.truncate(0)


def inherited(folder: Path, lock: int) -> bool:
    """Whether `lock` is this machine's lock, open and held by whoever started this process."""
    try:
        is_lock = os.path.samestat(os.fstat(lock), (folder / "measuring.lock").stat())
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # changes nothing on a lock that the same open file holds
    except OSError:
        return False
    return is_lock


def record(folder: Path, processes: list[psutil.Process]) -> None:
    """Note which processes this session has now, for the sweeper."""
    body: dict[str, Any] = {"supervisor": identity(psutil.Process()), "processes": []}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            body["processes"].append(identity(process))
    write_json(folder / "sessions" / f"{os.getpid()}.json", body)


def forget(folder: Path) -> None:
    """This session has ended and left nothing."""
    (folder / "sessions" / f"{os.getpid()}.json").unlink(missing_ok=True)


def sweep(folder: Path, *, grace_s: float = 5.0) -> list[str]:
    """End what sessions without a living supervisor left behind; returns what was ended."""
    ended: list[str] = []
    for path in sorted((folder / "sessions").glob("*.json")):
        try:
            body = read_json(path)
            if same_process(body["supervisor"]):
                continue
            left = [process for known in body["processes"] if (process := same_process(known))]
        except (ValueError, KeyError, FileNotFoundError):
            left = []
        ended += _end(left, grace_s)
        path.unlink(missing_ok=True)
    return ended


def _end(processes: list[psutil.Process], grace_s: float) -> list[str]:
    ended = []
    family = {child for process in processes for child in _family(process)}
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            ended.append(f"{process.pid} {' '.join(process.cmdline()[:5])}")
            process.terminate()
    _, alive = psutil.wait_procs(list(family), timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=grace_s)
    return ended


def _family(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def _acquire(
    handle: IO[str], path: Path, wait_s: float, say: Callable[[str], None], interrupted: Callable[[], None]
) -> None:
    until, told = time.monotonic() + wait_s, False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = path.read_text().strip() or "another session"
            if time.monotonic() >= until:
                message = f"this machine is measuring for process {holder}; wait for it or stop it, then run again"
                raise SessionError("busy", message) from None
            if not told:
                say(f"waiting: this machine is measuring for process {holder}")
                told = True
            interrupted()
            time.sleep(0.2)
