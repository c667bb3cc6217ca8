"""Every kernel in one call on a GPU machine: all checks side by side, then all times one after another, then the table.

    python3 -m tools.gpu.micro.sweep OUT [--budget 480] [--only OP,..]

Each implementation is checked in a process of its own with a time limit, so a candidate that hangs or kills its context
takes nothing with it, and only what passed is timed. OUT gets `micro.json`, `micro.md` and the logs; what was under way
when the budget ended is in them as far as it came.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stack.kernels import cuda_source
from stack.kernels.catalog import OPS
from tools.gpu.micro.programs import compile_programs
from tools.gpu.micro.table import document
from tools.gpu.micro.variants import implementation

CHECKERS, TIMERS = 8, 3
"""Processes at once. Those that time take turns on the GPU; the others load and compile meanwhile."""

CHECK_LIMIT_S, TIME_LIMIT_S = 150, 240
"""Of one process; waiting for its turn on the GPU counts."""

SHARE_OF_CHECKS = 0.5
"""Of the budget, at most."""


def main() -> int:
    """Exit code 1 when anything that should run is wrong, fails or was not reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=480, help="seconds for everything")
    parser.add_argument("--only", default="", help="ops, separated by commas")
    options = parser.parse_args()
    from tools.gpu.micro.shapes import hindrance

    if problem := hindrance(options.only):
        parser.error(problem)
    begin = time.monotonic()
    for folder in ("checks", "times"):
        (options.out / folder).mkdir(parents=True, exist_ok=True)
    only = set(filter(None, options.only.split(","))) or set(OPS)
    with ThreadPoolExecutor(1) as beside:
        programs = beside.submit(compile_programs)
        compile_sources(ops=only)
        print("\n".join(programs.result()), end="", flush=True)
    print(f"compiled after {time.monotonic() - begin:.0f} s", flush=True)
    with ThreadPoolExecutor(CHECKERS) as pool:
        end = begin + options.budget * SHARE_OF_CHECKS
        checked = list(pool.map(lambda pair: check(*pair, options.out, end), pairs(only)))
    print(f"checked after {time.monotonic() - begin:.0f} s", flush=True)
    passed: dict[str, list[str]] = {}
    for op, impl, is_right in checked:
        if is_right:
            passed.setdefault(op, []).append(impl)
    with ThreadPoolExecutor(TIMERS) as pool:
        end = begin + options.budget
        list(pool.map(lambda op: measure(op, passed[op], options.out, end), passed))
    report = collect(options.out, checked)
    (options.out / "micro.json").write_text(json.dumps(report, indent=1))
    (options.out / "micro.md").write_text(document(report))
    print(document(report))
    print(f"{len(report['times'])} times after {time.monotonic() - begin:.0f} s")
    return int(bool(report["failures"]))


def compile_sources(others: Sequence[Path] = (), ops: Iterable[str] = OPS) -> None:
    """All CUDA sources of `ops` and `others` at once; those whose cubin was brought along cost nothing."""
    root = Path(cuda_source.__file__).parent
    sources = [*(path for path in sorted(root.rglob("*.cu")) if path.parent.name in {*ops, root.name}), *others]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for source, error in zip(sources, pool.map(_compile, sources), strict=True):
            if error:
                print(f"{source.name}: {error}", flush=True)


def _compile(source: Path) -> str:
    try:
        cuda_source.compile_source(source)
    except Exception as error:
        return str(error)
    return ""


def pairs(only: set[str]) -> Iterator[tuple[str, str]]:
    """Each op's implementations that have a check, in the order in which they will be timed."""
    from tools.gpu.micro.checks import checks
    from tools.gpu.micro.shapes import shapes

    have: dict[str, list[str]] = {}
    for shape in shapes():
        have.setdefault(shape.op, [])
    for case in checks():
        have.setdefault(case.op, [])
        have[case.op] += [impl for impl in case.impls if impl not in have[case.op]]
    yield from ((op, impl) for op, impls in have.items() if op in only for impl in impls)


def check(op: str, impl: str, out: Path, end: float) -> tuple[str, str, bool]:
    """Whether every case of one implementation passed."""
    path = out / "checks" / f"{op}.{impl}.json"
    done = micro(path, end, CHECK_LIMIT_S, "--only", op, "--impl", impl, "--skip-times")
    return op, impl, done and any(row["verdict"] == "ok" for row in rows(path, "checks"))


def measure(op: str, impls: list[str], out: Path, end: float) -> None:
    """Times of an op's implementations; if their process dies, of those that are left, one process each."""
    words = ("--only", op, "--skip-checks", "--lock", str(out / "gpu.lock"))
    path = out / "times" / f"{op}.json"
    if micro(path, end, TIME_LIMIT_S, *words, "--impl", ",".join(impls)):
        return
    for impl in impls:
        if not any(implementation(row["impl"]) == impl for row in rows(path, "times")):
            micro(out / "times" / f"{op}.{impl}.json", end, TIME_LIMIT_S / 2, *words, "--impl", impl)


def micro(path: Path, end: float, limit_s: float, *words: str) -> bool:
    """One run of `tools.gpu.micro` into `path`, its words beside it; whether it ended well and in time."""
    left = min(limit_s, end - time.monotonic())
    if left < 5:
        return False
    command = [sys.executable, "-m", "tools.gpu.micro", "--out", str(path), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    with path.with_suffix(".log").open("w") as log, contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment, timeout=left, check=False)
        return done.returncode == 0
    return False


def rows(path: Path, kind: str) -> list[dict[str, Any]]:
    """What a run left behind."""
    found: list[dict[str, Any]] = json.loads(path.read_text())[kind] if path.exists() else []
    return found


def collect(out: Path, checked: list[tuple[str, str, bool]]) -> dict[str, Any]:
    """One report of all runs. `failures` are the implementations that did not pass, with the first reason."""
    report: dict[str, Any] = {"checks": [], "times": [], "failures": []}
    for kind in ("checks", "times"):
        for path in sorted((out / kind).glob("*.json")):
            content = json.loads(path.read_text())
            report[kind] += content[kind]
            report |= {name: content[name] for name in ("device", "torch")}
    for op, impl, is_right in checked:
        path = out / "checks" / f"{op}.{impl}.json"
        bad = [row for row in rows(path, "checks") if row["verdict"] != "ok"]
        if bad and all(row["verdict"] == "missing" for row in bad):
            continue
        if not is_right:
            reason = f"{bad[0]['case']}: {bad[0]['verdict']} {bad[0]['detail']}" if bad else last_words(path)
            report["failures"].append({"op": op, "impl": impl, "reason": reason})
    return report


def last_words(path: Path) -> str:
    """The end of a run's log."""
    log = path.with_suffix(".log")
    words = log.read_text().strip().splitlines() if log.exists() else []
    return f"died or ran out of time after: {words[-1][:200] if words else 'nothing'}"


if __name__ == "__main__":
    sys.exit(main())
