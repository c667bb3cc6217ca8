"""Runs Snakemake for `np1d run`, so that one sentence says what went wrong and the next run simply continues.

One run at a time works in a checkout: its lock is an open file that Snakemake inherits, so the lock lives exactly as
long as the work. A lock that a killed Snakemake left behind is therefore known to be stale and is taken away.
"""

import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

import psutil

from workflows.errors import WorkflowError
from workflows.measure import measure
from workflows.standing import restore
from workflows.supervisor.processes import die_with_parent

ROOT = Path(__file__).resolve().parent.parent
PROFILE = "workflows/profiles/default"


def run_snakemake(
    targets: Sequence[str],
    config: Sequence[str],
    anew: Callable[[], Sequence[str]],
    *,
    profile: str = PROFILE,
    arguments: Sequence[str] = (),
) -> int:
    """Bring the targets up to date; returns Snakemake's exit code, 130 when interrupted. Raises WorkflowError.

    `anew` names files to make again although they are there; it is asked when results that an earlier run took away
    have been put back.
    """
    with working_alone() as lock:
        _drop_stale_lock(config)
        _put_back()
        command = [*_snakemake(profile, targets), *arguments, *_forced(anew()), "--config", *config]
        try:
            return _run(command, lock)
        finally:
            _put_back()


def _put_back() -> None:
    """Results that a cut-off or failed attempt took away."""
    try:
        for folder in restore(ROOT / "results"):
            measure(folder)
    except OSError as error:
        sys.stderr.write(
            f"a result could not be put back ({error.strerror}); its attempt is kept, the next run tries again\n"
        )


def _snakemake(profile: str, targets: Sequence[str] = ()) -> list[str]:
    """Targets come first: several of Snakemake's options swallow all words that follow."""
    files = ["--snakefile", "Snakefile", "--directory", ".", "--profile", profile]
    return [sys.executable, "-m", "snakemake", *targets, *files]


def _forced(files: Sequence[str]) -> list[str]:
    return ["--forcerun", *files] if files else []


def dry_run(targets: Sequence[str], config: Sequence[str], anew: Sequence[str]) -> str:
    """What Snakemake would do and why, as it says it. Raises WorkflowError with its complaint when it cannot."""
    command = [*_snakemake(PROFILE, targets), "--dry-run", "--nolock", *_forced(anew), "--config", *config]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise WorkflowError(f"Snakemake cannot plan this: {_complaint(done.stdout + done.stderr)}")
    return done.stdout + done.stderr


def _complaint(text: str) -> str:
    """What Snakemake complains about, without its banner and traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it said nothing"]
    first = next((i for i, line in enumerate(lines) if re.match(r"\w*(Error|Exception)\b", line)), len(lines) - 1)
    return " ".join(lines[first : first + 3])


def working_alone() -> IO[str]:
    """The lock of this checkout's results, held until it is closed. Raises WorkflowError while a run holds it."""
    lock = _lock_file()
    if holder := _holder(lock):
        lock.close()
        raise WorkflowError(
            f"another np1d run (process {holder}) is working in this folder; wait for it to end, then run again"
        )
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    os.set_inheritable(lock.fileno(), True)
    return lock


def run_at_work() -> str:
    """The process of the run that works in this checkout now; empty where there is none."""
    with _lock_file() as lock:
        return _holder(lock)


def _lock_file() -> IO[str]:
    path = ROOT / ".snakemake" / "np1d.lock"
    path.parent.mkdir(exist_ok=True)
    return path.open("a+")


def _holder(lock: IO[str]) -> str:
    """Who holds the lock; empty where it is ours now."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return ""
    except BlockingIOError:
        lock.seek(0)
        return lock.read().strip() or "unknown"


def _drop_stale_lock(config: Sequence[str]) -> None:
    locks = ROOT / ".snakemake" / "locks"
    if not locks.is_dir() or not any(locks.iterdir()):
        return
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if process.info["cwd"] == str(ROOT) and "snakemake" in " ".join(process.info["cmdline"] or []):
            raise WorkflowError(f"a snakemake (process {process.pid}) is working in this folder; wait for it to end")
    subprocess.run([*_snakemake(PROFILE), "--unlock", "--config", *config], cwd=ROOT, capture_output=True, check=False)


def _hear_interrupts() -> None:
    """In the child, before it becomes Snakemake: one that was started in a script's background ignores interrupts, and
    so would everything that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with_parent(signal.SIGINT)


def _run(command: Sequence[str], lock: IO[str]) -> int:
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        pass_fds=[lock.fileno()],
        preexec_fn=_hear_interrupts,
    )
    interrupted: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        interrupted.append(number)
        if number != signal.SIGINT:  # the terminal sends SIGINT to both
            process.send_signal(signal.SIGINT)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 130 if interrupted else code
