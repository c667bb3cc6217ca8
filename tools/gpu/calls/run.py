"""`python3 -m tools.gpu.calls.run CALL --carry build/carry --out OUT`: run a packed call on the GPU machine.

Each step has its own time limit and its own log; whatever happens to one, the next is begun while time is left. What
comes back lies in OUT as at most eight files of at most 15 MiB: `summary.json`, `results.tar.xz.NN` (sessions that
`np1d import` takes in, tables, ends of logs) and `kernels.tar.xz`, which the next call carries. Standard library alone.
"""

import argparse
import contextlib
import fcntl
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.gpu.calls import compiled
from tools.gpu.calls.table import TABLE, Call, Step, read_calls

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build"
PIECE_BYTES = 15 * 2**20
MOST_PIECES = 5
LEAVE_S = 25.0
"""Kept back at the end for packing what was found."""
GRACE_S = 25.0
"""Between asking a step to end and killing it: a session takes its servers down in this time."""
SESSION_SHARE = 0.75
"""Of its limit, what a session must find left to be begun: cut short it gives nothing, and most take two thirds. Of
other steps what was reached is kept, so they begin with half a minute."""
LOG_BYTES = 64 * 2**10
LEFT_OUT_BYTES = 60 * 2**20


class Machine:
    """Packages and compiled kernels of a call, unpacked where its steps find them.

    Temporary files of its steps have a folder of their own, and with it the lock that lets one session measure at a
    time: two calls on two GPUs of one machine do not wait for each other.
    """

    def __init__(self, carry: Path) -> None:
        self.carry = carry
        pieces = sorted((carry / "site").glob("*"))
        site = unpacked(b"".join(piece.read_bytes() for piece in pieces)) if pieces else None
        compiled.restore(carry / "kernels.tar.xz", BUILD)
        if (carry / "commit.json").exists():
            shutil.copyfile(carry / "commit.json", BUILD / "commit.json")
        path = [str(ROOT), *([str(site)] if site else []), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONUNBUFFERED": "1",
            **compiled.caches(BUILD),
            "TMPDIR": tempfile.mkdtemp(prefix="np1d-call-"),
        }


def unpacked(packed: bytes) -> Path:
    """The packages, always in a folder of one name: DeepGEMM's names of compiled kernels contain its own path, so in
    another it would compile all of them again. Another call of this machine that needs them meanwhile waits."""
    site, digest = Path(tempfile.gettempdir()) / "np1d-site", hashlib.sha256(packed).hexdigest()
    mark = site / "packed.sha256"
    with site.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (mark.exists() and mark.read_text() == digest):
            shutil.rmtree(site, ignore_errors=True)
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(site, filter="data")
            mark.write_text(digest)
    return site


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit code 1 when a step failed, was too slow or was not begun."""
    options = _parser().parse_args(arguments)
    end_s = time.monotonic() + options.total_s
    calls = read_calls(options.table)
    if problem := _problem(options.call, calls, options.carry):
        sys.stderr.write(f"error: {problem}\n")
        return 2
    call = calls[options.call]
    machine, work = Machine(options.carry), options.out / "work"
    done = []
    for step in call.steps:
        left_s = end_s - time.monotonic() - LEAVE_S - GRACE_S
        done.append(_run(machine, call.name, step, work / step.name, left_s))
        print(_line(done[-1]), flush=True)
        _write(options.out, call.name, done)
    _collect(options.out, work)
    return 0 if all(step["status"] == "ok" for step in done) else 1


def _problem(name: str, calls: Mapping[str, Call], carry: Path) -> str:
    if name not in calls:
        return f"no call {name}; there are {', '.join(sorted(calls))}"
    plans = [carry / "plans" / f"{name}.{step.name}.json" for step in calls[name].steps if step.kind == "session"]
    if any(not plan.exists() for plan in plans):
        return f"{carry} does not hold {name}: `python -m tools.gpu.calls.pack {name}` packs it"
    return ""


def commands_of(carry: Path, call: str, step: Step, folder: Path) -> list[list[str]]:
    """What a step runs, in order."""
    python = [sys.executable, "-m"]
    if step.kind == "session":
        plan = carry / "plans" / f"{call}.{step.name}.json"
        session = str(folder / "s0")
        return [[*python, "workflows.session", str(plan), session], [*python, "workflows.measure", session]]
    filled = [word.replace("{out}", str(folder)).replace("{carry}", str(carry)) for word in step.arguments]
    if step.kind == "python":
        return [[*python, *filled]]
    return [
        [
            *python,
            "pytest",
            "-q",
            "-s",
            "-m",
            "gpu",
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=",
            "-o",
            "timeout=0",
            *filled,
        ]
    ]


def _run(machine: Machine, call: str, step: Step, folder: Path, left_s: float) -> dict[str, object]:
    begun_s = time.monotonic()
    facts: dict[str, object] = {"step": step.name, "limit_s": step.limit_s, "status": "ok", "last": ""}
    needed_s = step.limit_s * SESSION_SHARE if step.kind == "session" else min(30.0, step.limit_s)
    if left_s < needed_s:
        return facts | {"status": "not begun", "last": f"{max(left_s, 0):.0f} s were left", "took_s": 0.0}
    folder.mkdir(parents=True, exist_ok=True)
    until_s = begun_s + min(step.limit_s, left_s)
    for command in commands_of(machine.carry, call, step, folder):
        code = _obey(command, machine.env, folder / "step.log", until_s)
        if code != 0:
            facts["status"] = "too slow" if code is None else f"exit {code}"
            break
    log = (folder / "step.log").read_text(errors="replace").splitlines()
    return facts | {"last": " / ".join(log[-3:])[-600:], "took_s": round(time.monotonic() - begun_s, 1)}


def _obey(command: list[str], env: dict[str, str], log: Path, until_s: float) -> int | None:
    """Exit code, or None for a command that was ended because its time was up."""
    with log.open("ab") as written:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=written, stderr=written, start_new_session=True)
        try:
            return process.wait(max(0.1, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def _write(out: Path, call: str, done: list[dict[str, object]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps({"call": call, "steps": done}, indent=1) + "\n")


def _line(facts: dict[str, object]) -> str:
    return f"== {facts['step']}: {facts['status']} after {facts['took_s']} s of {facts['limit_s']:g}: {facts['last']}"


def _collect(out: Path, work: Path) -> None:
    """Everything but attempts' copies of results; of logs their ends."""
    kept = out / "results.tar.xz"
    with tarfile.open(kept, "w:xz", preset=3) as archive:
        for path in sorted(work.rglob("*")):
            if not path.is_file() or path.is_symlink() or _is_copy(path, work):
                continue
            if path.suffix == ".log" and path.stat().st_size > LOG_BYTES:
                path.write_bytes(path.read_bytes()[-LOG_BYTES:])
            if path.stat().st_size <= LEFT_OUT_BYTES:
                archive.add(path, str(path.relative_to(work)), recursive=False)
    cut(kept)
    compiled.keep([BUILD], out / "kernels.tar.xz")
    shutil.rmtree(work, ignore_errors=True)


def _is_copy(path: Path, work: Path) -> bool:
    """Results lie in an attempt's folder too; there only logs and the reason of a failure are kept."""
    return "attempts" in path.relative_to(work).parts and path.suffix != ".log" and path.name != "status.json"


def cut(whole: Path) -> None:
    """Replace a file by pieces `NAME.NN` that may come back."""
    data = whole.read_bytes()
    whole.unlink()
    pieces = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]
    for number, piece in enumerate(pieces[:MOST_PIECES]):
        whole.with_name(f"{whole.name}.{number:02d}").write_bytes(piece)
    if len(pieces) > MOST_PIECES:
        print(
            f"results of {len(data) / 2**20:.0f} MiB do not fit; the last {len(pieces) - MOST_PIECES} pieces are lost"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m tools.gpu.calls.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("call", help="its name in calls.txt")
    parser.add_argument("--carry", type=Path, required=True, help="what `pack` wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for what comes back")
    parser.add_argument("--total-s", type=float, default=570.0, help="time for the whole call")
    parser.add_argument("--table", type=Path, default=TABLE)
    return parser


if __name__ == "__main__":
    sys.exit(main())
