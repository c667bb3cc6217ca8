"""Builds `.venv` from one or more locks: `create.py .venv envs/cpu.txt [envs/test.txt]`. Standard library only.

Idempotent: a lock whose digest is stamped in the environment is not installed again. Two at once wait for each other.
Whatever is missing on the machine is said in one sentence, and the exit code is 1.
"""

import fcntl
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FREE_BYTES = 6 * 2**30
"""What both locks and pip's temporary files need at most."""

COMPILED = (
    "stack.engine.worker, stack.server.app",
    "snakemake.cli, workloads.client, workflows.cli, workflows.measure, reports.build",
)
"""Modules of the main job, for two processes of about the same work."""


class SetupError(Exception):
    """The machine lacks something; the message says what to do."""


def main(arguments: list[str]) -> int:
    """Create or complete the environment named first from the locks that follow."""
    folder, *locks = (Path(argument).absolute() for argument in arguments)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        try:
            _wait_for(lock)
            _create(folder)
            installed = [_install(folder, path) for path in locks]
            _install_project(folder)
            if any(installed):
                _compile(folder)
        except SetupError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


def _wait_for(lock) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another make is building this environment; waiting for it", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _create(folder: Path) -> None:
    if _version_of(folder) == sys.version_info[:2]:
        return
    if importlib.util.find_spec("ensurepip") is None:
        minor = sys.version_info[1]
        raise SetupError(f"this Python has no venv module; on Debian: apt-get install python3.{minor}-venv")
    free = shutil.disk_usage(folder.parent).free
    if free < FREE_BYTES:
        needed = f"{free / 2**30:.1f} GiB free and the environment needs {FREE_BYTES / 2**30:.0f}"
        raise SetupError(f"{folder.parent} has {needed}; free some space")
    print(f"creating {folder.name} with Python {sys.version.split()[0]}", flush=True)
    try:
        venv.create(folder, with_pip=True, clear=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(f"could not create {folder}: {error}") from error


def _version_of(folder: Path) -> tuple[int, int] | None:
    try:
        answer = subprocess.run(
            [_python(folder), "-c", "import pip, sys; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    major, minor = answer.stdout.split()
    return int(major), int(minor)


def _install(folder: Path, lock: Path) -> bool:
    """Whether there was anything to install."""
    stamp = folder / f"{lock.stem}.installed"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return False
    packages = [line for line in lock.read_text().splitlines() if "==" in line]
    print(f"installing {len(packages)} packages of {lock.name}", flush=True)
    _pip(folder, ["--no-deps", "-r", str(lock)], len(packages))
    if any(line.startswith("torch==") for line in packages):
        _complete_torch(folder, next(line for line in packages if line.startswith("torch==")))
    stamp.write_text(digest)
    return True


def _compile(folder: Path) -> None:
    """Import what the main job imports, so that Python compiles that and not the thousands of files beside it: pip,
    which would compile all of them in one process, takes a minute for it. Two processes, for two cores."""
    imports = [
        subprocess.Popen([_python(folder), "-c", f"import {names}"], cwd=ROOT, stderr=subprocess.DEVNULL)
        for names in COMPILED
    ]
    for process in imports:
        process.wait()  # what cannot be imported says so where it is used


def _complete_torch(folder: Path, pin: str) -> None:
    """A torch built for CUDA does not load without its CUDA libraries; a CPU build needs nothing more."""
    if subprocess.run([_python(folder), "-c", "import torch"], capture_output=True).returncode == 0:
        return
    print(f"this {pin} is a CUDA build; installing the CUDA libraries that it loads (several GB)", flush=True)
    _pip(folder, [pin], 20)
    loaded = subprocess.run([_python(folder), "-c", "import torch"], capture_output=True, text=True)
    if loaded.returncode:
        raise SetupError(f"torch does not load: {loaded.stderr.strip().splitlines()[-1]}")


def _install_project(folder: Path) -> None:
    stamp = folder / "np1d.installed"
    wanted = hashlib.sha256(str(ROOT).encode() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    _pip(folder, ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)], 1)
    stamp.write_text(wanted)


def _pip(folder: Path, arguments: list[str], expected: int) -> None:
    command = [
        _python(folder),
        "-m",
        "pip",
        "install",
        "--no-compile",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        *arguments,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    started, count, tail = time.monotonic(), 0, []
    for line in process.stdout:
        tail = [*tail[-14:], line.rstrip()]
        if line.startswith("Collecting "):
            count += 1
            _show(f"  {count}/{max(expected, count)} {line.split()[1]}")
        elif line.startswith("Installing collected"):
            _show("  unpacking", last=True)
    if process.wait():
        raise SetupError("pip could not install what is needed; its last words were:\n  " + "\n  ".join(tail))
    _show(f"  done in {time.monotonic() - started:.0f} s", last=True)


def _show(text: str, *, last: bool = False) -> None:
    if sys.stdout.isatty():
        print(f"\r\033[K{text}", end="\n" if last else "", flush=True)
    elif last or text.split("/")[0].endswith("1"):
        print(text, flush=True)


def _python(folder: Path) -> str:
    return str(folder / "bin" / "python")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print("usage: create.py VENV LOCK...", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv[1:]))
