"""`python -m tools.gpu.calls.pack CALL ...`: what a bare, offline GPU machine needs for calls, in `build/carry`.

Packages in pieces of at most 24 MiB, the plans of the calls' sessions, the commit, this checkout's own files but
weights (`tree.tar.xz`, so that what runs there is what was packed, whatever that machine has), compute-sanitizer where
a step takes `{carry}/sanitizer.tar.xz`, and what earlier calls brought back into `build`: compiled kernels
(`kernels.tar.xz`) and recorded routes (`routes.safetensors`). Packages that are there already stay. Calls that name
packages of their own get these alone and none of what came back, or these besides the others' where they are packed
with calls that name none.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tools.gpu.calls.sanitizer import VERSIONS, pack_sanitizer
from tools.gpu.calls.table import TABLE, read_calls
from workflows.errors import WorkflowError
from workflows.plan import Plan
from workflows.planner import plan_session
from workflows.provenance import packed
from workloads.files import write_json

ROOT = Path(__file__).resolve().parents[3]
PIECE_BYTES = 24 * 2**20
TREE = ("stack", "workloads", "workflows", "tools", "reports", "tests", "envs", "Snakefile", "pyproject.toml")
SERVE = (
    "pyzmq", "pydantic==2.12.5", "pydantic-core==2.41.5", "typing-inspection", "annotated-types", "annotated-doc",
    "orjson", "uvicorn", "starlette==0.50.0", "httptools", "prometheus-client",
)  # fmt: skip
"""What a server needs beyond the kernels' packages and what such a machine has."""
PAIR = ("nixl==1.5.0", "nixl-cu13==1.5.0", "sglang-router==0.3.2", "setproctitle", "fastapi==0.121.3")
"""What two instances need besides."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit code 2 for a mistake of the user."""
    options = _parser().parse_args(arguments)
    calls = read_calls(options.table)
    if unknown := [name for name in options.calls if name not in calls]:
        sys.stderr.write(f"error: no call {unknown[0]}; there are {', '.join(calls)}\n")
        return 2
    carry, chosen = options.carry, [calls[name] for name in options.calls]
    shutil.rmtree(carry / "plans", ignore_errors=True)
    try:
        for name, step in ((call.name, step) for call in chosen for step in call.steps):
            if step.kind == "session":
                row, workload = step.arguments
                testbed = options.testbed or calls[name].testbed
                write_plan(carry, name, step.name, plan_session(row, workload, testbed_id=testbed))
    except WorkflowError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    write_json(carry / "commit.json", packed())
    _write_tree(carry / "tree.tar.xz")
    needs_pair = any(call.testbed != "h200x1" for call in chosen)
    is_alone = all(call.packages for call in chosen)
    if not options.without_packages:
        special = sorted({name for call in chosen for name in call.packages})
        if is_alone:
            _pack(carry, ("--only", *special), "only")
        else:
            _pack(carry, (*SERVE, *(PAIR if needs_pair else ()), *special), "pair" if needs_pair else "serve")
    if any(word == "{carry}/sanitizer.tar.xz" for call in chosen for step in call.steps for word in step.arguments):
        kept = ROOT / "build" / f"sanitizer-{'-'.join(VERSIONS)}.tar.xz"
        pack_sanitizer(kept)
        shutil.copyfile(kept, carry / "sanitizer.tar.xz")
    else:
        (carry / "sanitizer.tar.xz").unlink(missing_ok=True)
    for earlier in ("kernels.tar.xz", "routes.safetensors"):
        (carry / earlier).unlink(missing_ok=True)
        if (ROOT / "build" / earlier).exists() and not is_alone:
            shutil.copyfile(ROOT / "build" / earlier, carry / earlier)
    total = sum(path.stat().st_size for path in carry.rglob("*") if path.is_file())
    num_steps = sum(len(call.steps) for call in chosen)
    sys.stderr.write(f"{carry}: {total / 2**20:.1f} MiB for {', '.join(options.calls)}, {num_steps} steps\n")
    return 0


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


def _pack(carry: Path, packages: Sequence[str], kind: str) -> None:
    done = carry / "site.json"
    if done.exists() and json.loads(done.read_text()) == [kind, *packages]:
        return
    done.unlink(missing_ok=True)
    shutil.rmtree(carry / "site", ignore_errors=True)
    whole = carry / "whole"
    subprocess.run([str(ROOT / "tools/gpu/pack.sh"), str(whole), *packages], check=True)
    data = (whole / "site.tar.xz").read_bytes()
    for number, start in enumerate(range(0, len(data), PIECE_BYTES)):
        piece = carry / "site" / f"{number:02d}"
        piece.parent.mkdir(parents=True, exist_ok=True)
        piece.write_bytes(data[start : start + PIECE_BYTES])
    shutil.rmtree(whole)
    done.write_text(json.dumps([kind, *packages]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu.calls.pack", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("calls", nargs="+", metavar="call", help="names in calls.txt; what several need is packed once")
    parser.add_argument("--carry", type=Path, default=ROOT / "build" / "carry")
    parser.add_argument("--testbed", default="", help="plan the sessions for another testbed (cpu: to try the flow)")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--without-packages", action="store_true", help="the machine has all packages")
    return parser


if __name__ == "__main__":
    sys.exit(main())
