"""`python3 -m tools.gpu.calls.device STAGE ... --carry build/carry --out OUT`: several packed calls on one machine.

A stage is a call, or two lanes joined by `+`, which run at the same time: the first on GPU 0 and the first half of the
processors, the second on GPU 1 and the other half. A lane is calls that follow each other, joined by `,`; calls joined
by `/` run on its GPU at the same time, which only calls may that time nothing (`CALL shares` in the table). Stages
follow each other while time is left. Every call works in a copy of the packed checkout, so what runs is what was
packed. What comes back is `summary.json` of all calls, `results.tar.xz.NN` with a folder for each call, and one
`kernels.tar.xz` of everything that was compiled. Standard library alone.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.gpu.calls import compiled
from tools.gpu.calls.run import GRACE_S, LEAVE_S, cut
from tools.gpu.calls.table import (
    MOST_LANES,
    TABLE,
    Call,
    lanes_of,
    names_of,
    problem_of,
    read_calls,
    read_lists,
    stages_of,
)

PACKING_S = 12.0
"""Kept back at the end for putting the lanes' kernels together."""
STARTING_S = 10.0
"""What a call takes before its first step: packages and kernels are unpacked."""
LEAST_S = 20.0
"""Less is no use to any step: a call that would have less for its first one is not begun."""


class Place:
    """A copy of the packed checkout in which one call runs at a time.

    `lane` is the number of its GPU, or None for a call that has all of them; `seat` tells places of one GPU apart.
    """

    def __init__(self, lane: int | None, seat: int, carry: Path, table: Path) -> None:
        self.lane = lane
        self.carry, self.table = carry.resolve(), table.resolve()
        tree = carry / "tree.tar.xz"
        with tree.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:12]
        self.folder = Path(tempfile.gettempdir()) / f"np1d-place-{lane or 0}-{seat}-{digest}"
        if not self.folder.exists():
            with tarfile.open(tree) as archive:
                archive.extractall(self.folder, filter="data")

    def start(self, call: str, out: Path, total_s: float) -> "subprocess.Popen[bytes]":
        """Begin a call; its lines go to `out.log`."""
        words = [sys.executable, "-m", "tools.gpu.calls.run", call, "--carry", str(self.carry), "--out", str(out)]
        words += ["--total-s", f"{total_s:.0f}", "--table", str(self.table)]
        env = dict(os.environ) if self.lane is None else {**os.environ, "CUDA_VISIBLE_DEVICES": _gpu(self.lane)}
        with out.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(words, cwd=self.folder, env=env, stdout=log, stderr=log)
        if self.lane is not None and (half := _half(self.lane)):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, half)
        return process


class Course:
    """What is to run until when, and how it went."""

    def __init__(self, calls: Mapping[str, Call], work: Path, end_s: float, options: argparse.Namespace) -> None:
        self.calls, self.work, self.end_s, self.options = calls, work, end_s, options
        self.codes: list[int] = []
        self.left_out: list[str] = []
        self.places: dict[tuple[int | None, int], Place] = {}

    def run_stage(self, stage: str) -> None:
        """Its lanes at the same time; returns when all have ended."""
        lanes = lanes_of(stage)
        if len(lanes) == 1:
            self._run_lane(None, lanes[0])
            return
        with ThreadPoolExecutor(len(lanes)) as pool:
            list(pool.map(self._run_lane, range(len(lanes)), lanes))

    def _run_lane(self, lane: int | None, groups: list[list[str]]) -> None:
        for group in groups:
            left_s = self.end_s - time.monotonic()
            if left_s < LEAVE_S + GRACE_S + STARTING_S + LEAST_S:
                self.left_out += group
                continue
            started = [
                (name, self._place(lane, seat).start(name, self.work / name, min(left_s, self._most_s(name))))
                for seat, name in enumerate(group)
            ]
            for name, process in started:
                self.codes.append(process.wait())
                log = (self.work / name).with_suffix(".log").read_text(errors="replace")
                sys.stdout.write(f"-- {name}\n{log}")
                sys.stdout.flush()

    def _place(self, lane: int | None, seat: int) -> Place:
        if (lane, seat) not in self.places:
            self.places[lane, seat] = Place(lane, seat, self.options.carry, self.options.table)
        return self.places[lane, seat]

    def _most_s(self, name: str) -> float:
        return sum(step.limit_s for step in self.calls[name].steps) + LEAVE_S + GRACE_S + STARTING_S


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit code 1 when a step of a call failed, was too slow or was not begun, 2 for a mistake."""
    options = _parser().parse_args(arguments)
    end_s = time.monotonic() + options.total_s - PACKING_S
    calls = read_calls(options.table)
    stages = stages_of(options.stages, read_lists(options.table))
    if problem := problem_of(stages, calls):
        sys.stderr.write(f"error: {problem}\n")
        return 2
    if not (options.carry / "tree.tar.xz").exists():
        what = " ".join(options.stages)
        sys.stderr.write(f"error: nothing is packed in {options.carry}: `python -m tools.gpu.calls.pack {what}`\n")
        return 2
    course = Course(calls, Path(tempfile.mkdtemp(prefix="np1d-device-")), end_s, options)
    for stage in stages:
        course.run_stage(stage)
    _collect(names_of(stages), course, options.out)
    if course.left_out:
        sys.stdout.write(f"-- not begun, for want of time: {', '.join(course.left_out)}\n")
    return 1 if any(course.codes) or course.left_out else 0


def _gpu(number: int) -> str:
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return str(number) if shown is None else shown.split(",")[number]


def _half(number: int) -> set[int]:
    processors = sorted(os.sched_getaffinity(0))
    size = len(processors) // MOST_LANES
    return set(processors[number * size : (number + 1) * size])


def _collect(names: Sequence[str], course: Course, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    summaries = []
    with tarfile.open(out / "results.tar.xz", "w:xz", preset=3) as results:
        for name in names:
            summary = course.work / name / "summary.json"
            body = json.loads(summary.read_text()) if summary.exists() else {"call": name, "steps": []}
            summaries.append(body)
            pieces = sorted((course.work / name).glob("results.tar.xz.*"))
            if pieces:
                _move(io.BytesIO(b"".join(piece.read_bytes() for piece in pieces)), name, results)
    cut(out / "results.tar.xz")
    (out / "summary.json").write_text(json.dumps(summaries, indent=1) + "\n")
    compiled.keep(
        [folder / "build" for folder in sorted({place.folder for place in course.places.values()})],
        out / "kernels.tar.xz",
    )
    shutil.rmtree(course.work, ignore_errors=True)


def _move(packed: io.BytesIO, folder: str, to: tarfile.TarFile) -> None:
    """Add what an archive holds to another, under a folder."""
    with tarfile.open(fileobj=packed) as archive:
        for entry in archive:
            entry.name = f"{folder}/{entry.name}"
            to.addfile(entry, archive.extractfile(entry))


def _parser() -> argparse.ArgumentParser:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python3 -m tools.gpu.calls.device", description=summary)
    parser.add_argument(
        "stages", nargs="+", metavar="stage", help="CALL, LANE+LANE for two GPUs at once, or a list of calls.txt"
    )
    parser.add_argument("--carry", type=Path, required=True, help="what `pack` wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for what comes back")
    parser.add_argument("--total-s", type=float, default=580.0, help="time for everything")
    parser.add_argument("--table", type=Path, default=TABLE)
    return parser


if __name__ == "__main__":
    sys.exit(main())
