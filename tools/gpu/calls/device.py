"""`python3 -m tools.gpu.calls.device STAGE ... --carry build/carry --out OUT`: several packed calls on one machine.

A stage is a call, or two calls joined by `+`, which then run at the same time: the first on GPU 0 and the first half of
the processors, the second on GPU 1 and the other half. Stages follow each other while time is left. Each lane works in
a copy of the packed checkout, so what runs is what was packed. What comes back is `summary.json` of all calls, each
call's `CALL.tar.xz.NN`, and one `kernels.tar.xz` of everything that was compiled. Standard library alone.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tools.gpu.calls import compiled
from tools.gpu.calls.run import GRACE_S, LEAVE_S
from tools.gpu.calls.table import TABLE, read_calls, read_lists, stages_of

PACKING_S = 12.0
"""Kept back at the end for putting the lanes' kernels together."""
STARTING_S = 10.0
"""What a call takes before its first step: packages and kernels are unpacked."""
LEAST_S = 20.0
"""Less is no use to any step: a call that would have less for its first one is not begun."""
MOST_LANES = 2


class Lane:
    """A copy of the packed checkout, with one GPU and a share of the processors, or with all of them."""

    def __init__(self, number: int, carry: Path, table: Path) -> None:
        self.number = number
        self.carry, self.table = carry.resolve(), table.resolve()
        tree = carry / "tree.tar.xz"
        with tree.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:12]
        self.folder = Path(tempfile.gettempdir()) / f"np1d-lane-{number}-{digest}"
        if not self.folder.exists():
            with tarfile.open(tree) as archive:
                archive.extractall(self.folder, filter="data")

    def start(self, call: str, out: Path, total_s: float, *, shared: bool) -> "subprocess.Popen[bytes]":
        """Begin a call; its lines go to `out.log`."""
        words = [sys.executable, "-m", "tools.gpu.calls.run", call, "--carry", str(self.carry), "--out", str(out)]
        words += ["--total-s", f"{total_s:.0f}", "--table", str(self.table)]
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": _gpu(self.number)} if shared else dict(os.environ)
        with out.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(words, cwd=self.folder, env=env, stdout=log, stderr=log)
        if shared and (half := _half(self.number)):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, half)
        return process


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit code 1 when a step of a call failed, was too slow or was not begun, 2 for a mistake."""
    options = _parser().parse_args(arguments)
    end_s = time.monotonic() + options.total_s - PACKING_S
    calls = read_calls(options.table)
    stages = [stage.split("+") for stage in stages_of(options.stages, read_lists(options.table))]
    names = [name for stage in stages for name in stage]
    if problem := _problem(stages, names, set(calls)):
        sys.stderr.write(f"error: {problem}\n")
        return 2
    lanes = [Lane(number, options.carry, options.table) for number in range(max(map(len, stages)))]
    work = Path(tempfile.mkdtemp(prefix="np1d-device-"))
    codes, left_out = [], []
    for stage in stages:
        left_s = end_s - time.monotonic()
        if left_s < LEAVE_S + GRACE_S + STARTING_S + LEAST_S:
            left_out += stage
            continue
        started = []
        for lane, name in zip(lanes, stage, strict=False):
            total_s = min(left_s, sum(step.limit_s for step in calls[name].steps) + LEAVE_S + GRACE_S + STARTING_S)
            started.append(lane.start(name, work / name, total_s, shared=len(stage) > 1))
        codes += [process.wait() for process in started]
        for name in stage:
            sys.stdout.write(f"-- {name}\n{(work / name).with_suffix('.log').read_text(errors='replace')}")
        sys.stdout.flush()
    _collect(names, work, options.out, lanes)
    if left_out:
        sys.stdout.write(f"-- not begun, for want of time: {', '.join(left_out)}\n")
    return 1 if any(codes) or left_out else 0


def _problem(stages: list[list[str]], names: list[str], known: set[str]) -> str:
    if unknown := sorted(set(names) - known):
        return f"no call {unknown[0]}; there are {', '.join(sorted(known))}"
    if len(set(names)) < len(names):
        return "a call stands twice in the list; each runs once"
    if max(map(len, stages)) > MOST_LANES:
        return f"a stage has at most {MOST_LANES} calls at once"
    return ""


def _gpu(number: int) -> str:
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return str(number) if shown is None else shown.split(",")[number]


def _half(number: int) -> set[int]:
    processors = sorted(os.sched_getaffinity(0))
    size = len(processors) // MOST_LANES
    return set(processors[number * size : (number + 1) * size])


def _collect(names: Sequence[str], work: Path, out: Path, lanes: Sequence[Lane]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    summaries = []
    for name in names:
        summary = work / name / "summary.json"
        body = json.loads(summary.read_text()) if summary.exists() else {"call": name, "steps": []}
        summaries.append(body)
        for piece in sorted((work / name).glob("results.tar.xz.*")):
            shutil.copyfile(piece, out / f"{name}.tar.xz.{piece.suffix[1:]}")
    (out / "summary.json").write_text(json.dumps(summaries, indent=1) + "\n")
    compiled.keep([lane.folder / "build" for lane in lanes], out / "kernels.tar.xz")
    shutil.rmtree(work, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python3 -m tools.gpu.calls.device", description=summary)
    parser.add_argument(
        "stages", nargs="+", metavar="stage", help="CALL, CALL+CALL for two GPUs at once, or a list of calls.txt"
    )
    parser.add_argument("--carry", type=Path, required=True, help="what `pack` wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for what comes back")
    parser.add_argument("--total-s", type=float, default=580.0, help="time for everything")
    parser.add_argument("--table", type=Path, default=TABLE)
    return parser


if __name__ == "__main__":
    sys.exit(main())
