"""`python -m tools.gpu.calls.pack CALL ...`: what a bare, offline GPU machine needs for calls, in `build/carry`.

Packages in pieces of at most 24 MiB, the plans of the calls' sessions, the commit, this checkout's own files but
weights (`tree.tar.xz`, so that what runs there is what was packed, whatever that machine has), compute-sanitizer where
a step takes `{carry}/sanitizer.tar.xz`, and what lies in `build`: kernels that `warm` or earlier calls compiled
(`kernels.tar.xz`) and recorded routes (`routes.safetensors`). Packages are downloaded once and kept in
`build/packages`. Calls that name packages of their own get these alone and none of what lies in `build`, or these
besides the others' where they are packed with calls that name none.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.gpu.calls.sanitizer import VERSIONS, pack_sanitizer
from tools.gpu.calls.table import TABLE, Call, names_of, problem_of, read_calls, read_lists, stages_of
from workflows.errors import WorkflowError
from workflows.plan import Plan
from workflows.planner import plan_session
from workflows.provenance import packed
from workloads.files import write_json

ROOT = Path(__file__).resolve().parents[3]
EARLIER = ("kernels.tar.xz", "routes.safetensors")
PIECE_BYTES = 24 * 2**20
TREE = ("stack", "workloads", "workflows", "tools", "reports", "tests", "envs", "Snakefile", "pyproject.toml")
SERVE = (
    "pyzmq", "pydantic==2.12.5", "pydantic-core==2.41.5", "typing-inspection", "annotated-types", "annotated-doc",
    "orjson", "uvicorn", "starlette==0.50.0", "httptools", "prometheus-client",
)  # fmt: skip
"""What a server needs beyond the kernels' packages and what such a machine has."""
PAIR = ("nixl==1.5.0", "nixl-cu13==1.5.0", "sglang-router==0.3.2", "setproctitle", "fastapi==0.121.3")
"""What two instances need besides."""


class LackingError(Exception):
    """What calls need is not here; the message says how to get it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit code 2 for a mistake of the user, and for something that is lacking."""
    options = _parser().parse_args(arguments)
    calls, lists = read_calls(options.table), read_lists(options.table)
    names = list(dict.fromkeys(names_of(stages_of(options.calls, lists))))
    if unknown := [name for name in names if name not in calls]:
        sys.stderr.write(f"error: no call {unknown[0]}; there are {', '.join([*lists, *calls])}\n")
        return 2
    chosen = [calls[name] for name in names]
    stages = stages_of(options.calls, lists)
    if problem := next(filter(None, (problem_of([stage], calls) for stage in stages)), ""):
        sys.stderr.write(f"error: {problem}\n")
        return 2
    try:
        _fill(options.carry, chosen, options)
    except (WorkflowError, LackingError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    total = sum(path.stat().st_size for path in options.carry.rglob("*") if path.is_file())
    num_steps = sum(len(call.steps) for call in chosen)
    sys.stderr.write(f"{options.carry}: {total / 2**20:.1f} MiB for {', '.join(names)}, {num_steps} steps\n")
    return 0


def _fill(carry: Path, calls: Sequence[Call], options: argparse.Namespace) -> None:
    """Raises WorkflowError and LackingError, before anything is written that takes long."""
    words = [word for call in calls for step in call.steps for word in step.arguments]
    is_alone = all(call.packages for call in calls)
    brought = () if is_alone else _brought(words, options)
    shutil.rmtree(carry / "plans", ignore_errors=True)
    for call in calls:
        for step in call.steps:
            if step.kind == "session":
                row, workload = step.arguments
                testbed = options.testbed or call.testbed
                write_plan(carry, call.name, step.name, plan_session(row, workload, testbed_id=testbed))
    write_json(carry / "commit.json", packed())
    _write_tree(carry / "tree.tar.xz")
    (carry / "sanitizer.tar.xz").unlink(missing_ok=True)
    try:
        if not options.without_packages:
            _pack(carry, packages_of(calls))
        if "{carry}/sanitizer.tar.xz" in words:
            kept = options.build / f"compute-sanitizer-{'-'.join(VERSIONS)}.tar.xz"
            kept.parent.mkdir(parents=True, exist_ok=True)
            pack_sanitizer(kept)
            shutil.copyfile(kept, carry / "sanitizer.tar.xz")
    except subprocess.CalledProcessError as error:
        raise LackingError(f"packages could not be downloaded; what says why is above ({error})") from None
    for earlier in EARLIER:
        (carry / earlier).unlink(missing_ok=True)
        if earlier in brought:
            shutil.copyfile(options.build / earlier, carry / earlier)


def _brought(words: Sequence[str], options: argparse.Namespace) -> tuple[str, ...]:
    """What earlier calls, or `warm`, left in `build` and goes along. Raises LackingError for what has to."""
    there = tuple(name for name in EARLIER if (options.build / name).exists())
    if "{carry}/routes.safetensors" in words and "routes.safetensors" not in there:
        raise LackingError(
            f"there are no recorded routes in {options.build / 'routes.safetensors'}: run the call routes_1 and copy "
            f"what its step record_routes brought back there, or pack tune_1_synthetic"
        )
    if "kernels.tar.xz" not in there and not (options.without_kernels or options.without_packages):
        archive = options.build / "kernels.tar.xz"
        raise LackingError(
            f"there are no compiled kernels in {archive}, and the machine would compile for minutes: run `python -m "
            f"tools.gpu.calls.warm {archive} {' '.join(options.calls)}` first, or pack --without-kernels"
        )
    return there


def write_plan(carry: Path, call: str, step: str, plan: Plan) -> None:
    """Where `run` looks for it."""
    write_json(carry / "plans" / f"{call}.{step}.json", plan.to_json())


def _write_tree(path: Path) -> None:
    """Every file of this checkout that a version control would keep, but weights."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *TREE]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    with tarfile.open(path, "w:xz") as archive:
        for name in sorted(set(filter(None, listed))):
            if not name.endswith(".safetensors") and (ROOT / name).is_file():
                archive.add(ROOT / name, name)


def packages_of(calls: Sequence[Call]) -> tuple[str, ...]:
    """What `pack.sh` is told for these calls together."""
    special = sorted({name for call in calls for name in call.packages})
    if calls and all(call.packages for call in calls):
        return ("--only", *special)
    return (*SERVE, *(PAIR if any(map(_has_two_instances, calls)) else ()), *special)


def _has_two_instances(call: Call) -> bool:
    sessions = any(step.kind == "session" for step in call.steps)
    transfers = any("tools.gpu.transfer" in step.arguments for step in call.steps)
    return transfers or (sessions and call.testbed != "h200x1")


def packed_site(packages: Sequence[str]) -> Path:
    """The archive of packages, kept in `build/packages` until `pack.sh` or what it is told changes."""
    script = ROOT / "tools/gpu/pack.sh"
    digest = hashlib.sha256(script.read_bytes() + json.dumps(packages).encode()).hexdigest()[:12]
    kept = ROOT / "build" / "packages" / f"{digest}.tar.xz"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as work:
            subprocess.run([str(script), work, *packages], check=True)
            (Path(work) / "site.tar.xz").replace(kept)
    return kept


def _pack(carry: Path, packages: Sequence[str]) -> None:
    shutil.rmtree(carry / "site", ignore_errors=True)
    (carry / "site").mkdir(parents=True)
    data = packed_site(packages).read_bytes()
    for number, start in enumerate(range(0, len(data), PIECE_BYTES)):
        (carry / "site" / f"{number:02d}").write_bytes(data[start : start + PIECE_BYTES])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu.calls.pack", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "calls", nargs="+", metavar="call", help="calls or lists of calls.txt; what several need is packed once"
    )
    parser.add_argument("--carry", type=Path, default=ROOT / "build" / "carry")
    parser.add_argument("--testbed", default="", help="plan the sessions for another testbed (cpu: to try the flow)")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="where compiled kernels and routes lie")
    parser.add_argument("--without-packages", action="store_true", help="the machine has all packages")
    parser.add_argument("--without-kernels", action="store_true", help="kernels are compiled there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
