"""`python -m tools.gpu.calls.warm ARCHIVE [CALL ...]`: compile here, without a GPU, what calls would compile there.

Every step of the calls is run on a GPU that does nothing (`tools.gpu.null`), in the Python, PyTorch and Triton of the
machine and with the packages of the calls; a session's instances are started as far as ready. Kernels of CUDA sources,
Triton and DeepGEMM land in ARCHIVE under the names by which the machine looks for them. One that is never looked for
costs its bytes: names are digests of all that the kernel was made of. Libraries for this machine's processor (Triton's
launchers) stay here, since another machine's system may not load them. Calls with packages of their own are left out.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from stack.kernels.cuda_source import compiler
from tools.gpu.calls import compiled
from tools.gpu.calls.pack import packages_of, packed_site
from tools.gpu.calls.run import unpacked
from tools.gpu.calls.table import TABLE, Call, Step, names_of, read_calls, read_lists, stages_of
from tools.gpu.null import library
from workflows.errors import WorkflowError
from workflows.planner import plan_session

ROOT = Path(__file__).resolve().parents[3]
WORK = ROOT / "build" / "warm"
PYTHON = "3.12"
NVCC = "release 13.0"
MACHINE = (
    "torch==2.11.0", "triton==3.6.0", "numpy", "safetensors", "tokenizers", "transformers", "einops", "pytest",
    "hypothesis", "pyyaml", "psutil", "jinja2", "aiohttp", "pyarrow", "pandas",
)  # fmt: skip
"""What the machine has and steps import; Triton's names of kernels contain a digest of its own files."""
LEFT_OUT = {
    "tools.gpu.sanitize", "tools.gpu.micro", "tools.gpu.micro.sweep", "tools.gpu.micro.parts",
    "tools.gpu.micro.collectives", "tools.gpu.transfer", "stack.tune_moe",
}  # fmt: skip
"""Modules whose kernels are compiled anyway, and some that need a GPU's answers or several GPUs."""
IGNORED = {"server", "disagg", "scheduler"}
"""Parts of an instance's configuration that no kernel depends on, but for the sizes of chunks."""


class NotHereError(Exception):
    """This machine lacks something; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Job:
    """A command on the GPU that does nothing."""

    name: str
    words: tuple[str, ...]


ALL_KERNELS = (
    Job("sources", ("tools.gpu.null.sources",)),
    Job("checks", ("tools.gpu.micro", "--skip-times", "--keep-going")),
    Job("times", ("tools.gpu.micro", "--skip-checks", "--keep-going")),
    Job("parts", ("tools.gpu.micro.parts", "--once")),
)
"""Every kernel by itself, at the sizes at which it is checked and timed: all sets of definitions of the sources."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit code 2 for a mistake, and where the machine lacks something."""
    options = _parser().parse_intermixed_args(arguments)
    calls, lists = read_calls(options.table), read_lists(options.table)
    chosen = list(dict.fromkeys(names_of(stages_of(options.calls or lists, lists))))
    try:
        if unknown := [name for name in chosen if name not in calls]:
            raise NotHereError(f"no call {unknown[0]}; there are {', '.join([*lists, *calls])}")
        warm(options.archive, [calls[name] for name in chosen], options)
    except (NotHereError, WorkflowError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def warm(archive: Path, calls: Sequence[Call], options: argparse.Namespace) -> None:
    """Add to `archive` what `calls` compile. Raises NotHereError and WorkflowError."""
    python, nvcc = _python(options.python), _nvcc()
    build, begun_s = WORK / "build", time.monotonic()
    shutil.rmtree(build, ignore_errors=True)
    compiled.restore(archive, build)
    known = {path for path in build.rglob("*") if path.is_file()}
    venv = _environment(python)
    site = unpacked(packed_site(packages_of([call for call in calls if not call.packages])).read_bytes())
    libraries = [*(venv / "lib" / f"python{PYTHON}" / "site-packages" / "torch" / "lib").glob("*.so")]
    null = library.build(WORK / "null", [*libraries, *site.rglob("*.so")], nvcc)
    env = {
        **os.environ, **compiled.caches(build), **library.environment(null),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    jobs = [*(() if options.steps_only else ALL_KERNELS), *jobs_of(calls, WORK / "plans")]
    _say(f"{len(jobs)} commands, {options.jobs} at a time, at most {options.limit_s:.0f} s each", begun_s)
    with ThreadPoolExecutor(options.jobs) as pool:
        for line in pool.map(lambda job: _run(job, venv, env, build, options.limit_s), jobs):
            _say(line, begun_s)
    for path in build.rglob("*.so"):
        if path not in known:
            path.unlink()
    unfinished = archive.with_suffix(".part")
    archive.parent.mkdir(parents=True, exist_ok=True)
    compiled.keep([build], unfinished)
    unfinished.replace(archive)
    size, counts = archive.stat().st_size / 2**20, ", ".join(f"{n} {kind}" for kind, n in count(build).items())
    _say(f"{archive}: {size:.1f} MiB, kernels: {counts}", begun_s)


def jobs_of(calls: Sequence[Call], plans: Path) -> Iterator[Job]:
    """What is run for the steps of `calls`, each thing once."""
    seen: set[tuple[str, ...]] = set()
    for call in calls:
        if call.packages:
            continue
        for step in call.steps:
            for job in _jobs(call, step, plans):
                key = _meaning(job)
                if key not in seen:
                    seen.add(key)
                    yield job


def count(build: Path) -> dict[str, int]:
    """Kernels by where they come from."""
    folders = {"CUDA": build / "cuda", "Triton": build / "jit" / "triton", "DeepGEMM": build / "jit" / "dg"}
    return {kind: len(list(folder.rglob("*.cubin"))) for kind, folder in folders.items()}


def _jobs(call: Call, step: Step, plans: Path) -> Iterator[Job]:
    name = f"{call.name}.{step.name}"
    out = WORK / "out" / name
    words = [word.replace("{out}", str(out)).replace("{carry}", str(WORK)) for word in step.arguments]
    if step.kind == "session":
        row, workload = step.arguments
        for process in plan_session(row, workload, testbed_id=call.testbed).processes:
            for file, config in process.files.items():
                path = plans / f"{name}.{file}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(config))
                yield Job(f"{name} {process.name}", ("tools.gpu.null.start", str(path)))
    elif step.kind == "pytest":
        pytest = ("pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "timeout=0")
        yield Job(name, (*pytest, *words))
    elif words[0] == "stack.engine.bench":
        yield Job(name, ("tools.gpu.null.start", *words[1:]))
    elif words[0] not in LEFT_OUT:
        out.mkdir(parents=True, exist_ok=True)
        yield Job(name, tuple(words))


def _meaning(job: Job) -> tuple[str, ...]:
    """The same for jobs that compile the same."""
    if job.words[0] != "tools.gpu.null.start" or len(job.words) > 2:
        return tuple(word for word in job.words if "--out" not in word and str(WORK) not in word)
    config = json.loads(Path(job.words[1]).read_text())
    kept = {name: part for name, part in config.items() if name not in IGNORED}
    chunks = {name: config["scheduler"][name] for name in ("chunk_tokens", "max_prefill_tokens", "max_running")}
    return (json.dumps([kept, chunks], sort_keys=True),)


def _run(job: Job, venv: Path, env: dict[str, str], build: Path, limit_s: float) -> str:
    log = WORK / "logs" / f"{job.name.replace(' ', '.')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    before, begun_s = sum(count(build).values()), time.monotonic()
    with log.open("wb") as written:
        words = [str(venv / "bin" / "python"), "-m", "tools.gpu.null.run", str(build / "cuda"), *job.words]
        process = subprocess.Popen(words, cwd=ROOT, env=env, stdout=written, stderr=written)
        try:
            code: int | str = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = "ended by its limit"
    new, took_s = sum(count(build).values()) - before, time.monotonic() - begun_s
    last = "" if code == 0 else f"; exit {code}, see {log.relative_to(ROOT)}"
    return f"{job.name}: {took_s:.0f} s, about {new} new kernels{last}"


def _python(named: str) -> str:
    if (ready := WORK / f"python{PYTHON}" / "bin" / "python").exists():
        return str(ready)
    found = shutil.which(named)
    says = subprocess.run([found, "-c", "import sys; print(*sys.version_info[:2], sep='.')"], capture_output=True,
                          text=True, check=False).stdout.strip() if found else ""  # fmt: skip
    if found is None or says != PYTHON:
        raise NotHereError(
            f"kernels' names depend on Python {PYTHON}, as the GPU machine has, and {named} is not one that runs here; "
            f"name one with --python"
        )
    return str(Path(found).resolve())


def _nvcc() -> str:
    nvcc = compiler()
    if nvcc is None or not shutil.which("gcc") or not shutil.which("nm"):
        raise NotHereError("compiling needs nvcc 13.0, gcc and nm on the PATH")
    if tempfile.gettempdir() != "/tmp":
        raise NotHereError(
            "DeepGEMM's names of kernels contain the folder of its package, /tmp/np1d-site: unset TMPDIR"
        )
    if NVCC not in subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout:
        sys.stderr.write(f"note: nvcc is not {NVCC}, which DeepGEMM's names contain: the machine compiles those anew\n")
    return nvcc


def _environment(python: str) -> Path:
    """A Python with what the machine has, made once."""
    venv = WORK / f"python{PYTHON}"
    mark = venv / "installed.json"
    if mark.exists() and json.loads(mark.read_text()) == list(MACHINE):
        return venv
    sys.stderr.write(f"installing {', '.join(MACHINE[:2])} and what else the machine has into {venv} (4 GB, once)\n")
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(venv)], check=True)
    subprocess.run([str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", *MACHINE], check=True)
    mark.write_text(json.dumps(MACHINE))
    return venv


def _say(line: str, begun_s: float) -> None:
    sys.stderr.write(f"{time.monotonic() - begun_s:5.0f} s  {line}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu.calls.warm", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("archive", type=Path, help="build/kernels.tar.xz; what it holds stays in it")
    parser.add_argument("calls", nargs="*", metavar="call", help="calls or lists of calls.txt; without any, all lists")
    parser.add_argument("--python", default=f"python{PYTHON}", help=f"a Python {PYTHON}")
    parser.add_argument(
        "--steps-only", action="store_true", help="without every kernel by itself, which one run compiles"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="commands at a time")
    parser.add_argument("--limit-s", type=float, default=900.0, help="time of one command")
    parser.add_argument("--table", type=Path, default=TABLE)
    return parser


if __name__ == "__main__":
    sys.exit(main())
