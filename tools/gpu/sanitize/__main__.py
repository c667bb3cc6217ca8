"""`python3 -m tools.gpu.sanitize OUT [--tool ARCHIVE]`: the kernels' checks under compute-sanitizer, several at once.

First planted faults: the version that sees them is used, of the one that is installed and the packed ones (which differ
in the drivers they know), and what no tool has seen fails the run. Then the units in their order, each with its own
time, log and verdict; `summary.json` and `summary.txt` in OUT are written again after each, so that whatever ends the
run leaves what was found. Every tensor is its own allocation, so that an access behind its end is one outside of any.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from tools.gpu.micro.sweep import compile_sources, rows
from tools.gpu.sanitize.planted import SOURCE
from tools.gpu.sanitize.units import Unit, units

UNIT_LIMIT_S = 90.0
PLANTED_LIMIT_S = 60.0
PLANTED = {"memcheck": ("clean", "overrun"), "racecheck": ("race", "arrivals"), "synccheck": ("barrier",)}
"""Kernels of `planted.cu` that a tool is shown and has to judge right."""
FAULTLESS = ("clean", "arrivals", "elected")
ELECTED = "elected"
"""A kernel without a fault that race checkers may refuse: then kernels that do the same are built so that every lane
arrives, which differs from what runs in who arrives alone."""
NUM_PLANTED = 8

SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard[^)\n]*\)?")
FAULT = re.compile(r"=+ (Invalid |Misaligned |Barrier error|.*[Rr]ace |.*hazard at )")
OPTIONS = {"memcheck": ("--padding", "65536", "--report-api-errors", "no")}
"""Room between allocations; what the driver refuses is raised by the kernels' callers anyway."""


@dataclass(slots=True)
class Report:
    """Verdicts so far. Written as a whole each time, by one thread at a time."""

    out: Path
    version: str = ""
    """Of the tool in use; verdicts on earlier ones count for nothing."""
    verdicts: list[dict[str, object]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, unit: Unit, verdict: str, detail: str, took_s: float) -> None:
        """One more, printed as well."""
        row = asdict(unit) | {"version": self.version, "verdict": verdict, "detail": detail, "took_s": round(took_s, 1)}
        with self.lock:
            self.verdicts.append(row)
            text = f"{verdict:14} {unit.tool:9} {unit.op:14} {unit.impl:22} {took_s:5.0f} s  {detail}\n"
            sys.stdout.write(text)
            sys.stdout.flush()
            with (self.out / "summary.txt").open("a") as summary:
                summary.write(text)
            (self.out / "summary.json").write_text(json.dumps(self.verdicts, indent=1) + "\n")


def main() -> int:
    """Exit code 1 when a unit is not clean, was not reached, or a tool did not see its planted fault."""
    options = _parser().parse_args()
    end_s = time.monotonic() + options.budget
    options.out.mkdir(parents=True, exist_ok=True)
    report = Report(options.out.resolve())
    signal.signal(signal.SIGTERM, _leave)
    compile_sources((SOURCE,))
    tools = {**installed(), **(unpacked(options.tool) if options.tool else {})}
    tool, kinds = working_tool(tools, report)
    follows = tool is not None and _planted(tool, "racecheck", ELECTED, NUM_PLANTED - 1, report)
    if tool is None:
        sys.stderr.write(
            "error: no compute-sanitizer works here; the logs of planted faults say why, "
            "and --tool takes an archive of tools.gpu.calls.sanitizer\n"
        )
        return 1
    only = set(filter(None, options.only.split(",")))
    chosen = [unit for unit in units(follows_election=follows) if unit.tool in kinds and (not only or unit.op in only)]
    jobs = options.jobs or max(2, min(12, len(os.sched_getaffinity(0)) - 2))
    work = [(tool, number, unit, report, end_s) for number, unit in enumerate(chosen, start=NUM_PLANTED)]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda arguments: run_unit(*arguments), work))
    fine, used = ("clean", "missing", "caught", "not followed"), report.version
    return int(any(row["verdict"] not in fine for row in report.verdicts if row["version"] == used))


def installed() -> dict[str, Path]:
    """The one on the PATH, or where CUDA usually lies."""
    usual = Path("/usr/local/cuda/bin/compute-sanitizer")
    found = shutil.which("compute-sanitizer") or (str(usual) if usual.exists() else None)
    return {"installed": Path(found)} if found else {}


def unpacked(archive: Path) -> dict[str, Path]:
    """The compute-sanitizer of every packed version, in order of preference."""
    folder = Path(tempfile.mkdtemp(prefix="np1d-sanitizer-"))
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="tar")
    return {tool.parent.name: tool for tool in sorted(folder.glob("*/compute-sanitizer"))}


def working_tool(tools: dict[str, Path], report: Report) -> tuple[Path | None, set[str]]:
    """The first version whose memcheck passes the clean kernel and sees the overrun, and its tools that saw all they
    were shown."""
    for report.version, tool in tools.items():
        shown = [(kind, name) for kind, names in PLANTED.items() for name in names]
        with ThreadPoolExecutor(len(shown)) as pool:
            judge = partial(_planted, tool, report=report)
            right = pool.map(judge, *zip(*shown, strict=True), range(len(shown)))
            seen = dict(zip(shown, right, strict=True))
        kinds = {kind for kind, names in PLANTED.items() if all(seen[kind, name] for name in names)}
        if "memcheck" in kinds:
            return tool, kinds
    return None, set()


def _planted(tool: Path, kind: str, name: str, number: int, report: Report) -> bool:
    unit, begun_s = Unit(kind, "planted", name), time.monotonic()
    log = report.out / f"{unit.name}.{report.version}.log"
    words = [sys.executable, "-m", "tools.gpu.sanitize.planted", name]
    code = obey(command(tool, kind, number) + words, log, PLANTED_LIMIT_S)
    found = errors_in(log)
    is_right = found is not None and (found > 0) == (name not in FAULTLESS)
    wrong = "not followed" if name == ELECTED else "not caught" if name not in FAULTLESS else "refused"
    verdict = wrong if not is_right else "clean" if name in FAULTLESS else "caught"
    report.add(unit, verdict, f"{report.version}: {first_error(log, code)}", time.monotonic() - begun_s)
    return is_right


def run_unit(tool: Path, number: int, unit: Unit, report: Report, end_s: float) -> None:
    """One implementation's checks under one tool."""
    begun_s = time.monotonic()
    limit_s = min(UNIT_LIMIT_S, end_s - begun_s)
    if limit_s < 10:
        report.add(unit, "not begun", "the time was up", 0)
        return
    log, found = report.out / f"{unit.name}.log", report.out / f"{unit.name}.json"
    words = ["-m", "tools.gpu.micro", "--only", unit.op, "--impl", unit.impl, "--skip-times", "--out", str(found)]
    words += ["--define", unit.define] if unit.define else []
    code = obey([*command(tool, unit.tool, number), sys.executable, *words], log, limit_s)
    verdict, detail = judged(log, found, code)
    built = f" (built with {unit.define})" if unit.define else ""
    report.add(unit, verdict, detail + built, time.monotonic() - begun_s)


def judged(log: Path, found: Path, code: int | None) -> tuple[str, str]:
    """The verdict on a unit from its log, its checks and its exit code (None: it was ended), and what shows it."""
    checked = rows(found, "checks")
    ran, errors = [row for row in checked if row["verdict"] != "missing"], errors_in(log)
    text = log.read_text(errors="replace")
    if errors or FAULT.search(text):
        counted = SUMMARY.search(text)
        return "ERRORS", f"{counted[0] if counted else 'not counted yet'}: {first_error(log, code)}"
    if code is None:
        return "too slow", f"after {len(checked)} cases, no error until then"
    if checked and not ran:
        return "missing", str(checked[0]["detail"])
    if wrong := [row for row in ran if row["verdict"] != "ok"]:
        return "checks failed", f"{wrong[0]['case']}: {wrong[0]['verdict']} {wrong[0]['detail']}"
    if errors is None or not ran or code:
        return "no verdict", first_error(log, code)
    return "clean", f"{len(ran)} cases"


def errors_in(log: Path) -> int | None:
    """What the tool counted, or None where it did not come to count."""
    found = SUMMARY.findall(log.read_text(errors="replace"))
    return max(int(errors or hazards) for errors, hazards in found) if found else None


def first_error(log: Path, code: int | None) -> str:
    """The first words of the tool about a fault, else the log's last line."""
    lines = log.read_text(errors="replace").splitlines()
    faults = [line for line in lines if FAULT.match(line)] or [line for line in lines if "= Error: " in line]
    others = [line for line in lines if not line.startswith("=====")]
    return (faults or others[-1:] or [f"exit code {code}"])[0].strip("= ")[:200]


def command(tool: Path, kind: str, number: int) -> list[str]:
    """The tool before a program. Each has ports of its own, since several run at once."""
    return [
        str(tool), "--tool", kind, "--error-exitcode", "9", "--target-processes", "application-only",
        "--port", str(49152 + 16 * number), "--launch-timeout", "120", "--print-limit", "10", "--check-exit-code", "no",
        "--kernel-name-exclude", "kernel_substring=2at6native", *OPTIONS.get(kind, ()),
    ]  # fmt: skip


def obey(words: list[str], log: Path, limit_s: float) -> int | None:
    """Exit code, or None for one that was ended with all it started because its time was up."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    with log.open("wb") as written:
        process = subprocess.Popen(words, stdout=written, stderr=written, env=environment, start_new_session=True)
        RUNNING.add(process.pid)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process.pid)
            process.wait()
            RUNNING.discard(process.pid)


RUNNING: set[int] = set()
"""Process groups under way: they end with this program."""


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _leave(number: int, frame: object) -> None:
    for group in tuple(RUNNING):
        _end(group)
    os._exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m tools.gpu.sanitize", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--tool", type=Path, help="archive of tools.gpu.calls.sanitizer, where none is installed")
    parser.add_argument("--budget", type=float, default=270, help="seconds for everything")
    parser.add_argument("--only", default="", help="ops, separated by commas")
    parser.add_argument("--jobs", type=int, default=0, help="processes at once; as many as fit without it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
