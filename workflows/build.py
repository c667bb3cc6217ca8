"""Writes what a session needs before it starts: a checkpoint by its own seeded command.

    python -m workflows.build tiny

Idempotent and safe to run twice at once: the command writes beside the target, which then takes its name in one step.
"""

import argparse
import fcntl
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workflows.catalog import load_catalog, nearest
from workflows.errors import SessionError, WorkflowError
from workflows.supervisor import given

ROOT = Path(__file__).resolve().parent.parent


def ensure_model(facts: dict[str, Any]) -> None:
    """Build the model of a plan if it is not there. Raises SessionError with the command that failed."""
    path = ROOT / given.fill(facts["path"])
    if (path / "config.json").is_file():
        return
    if facts["path"].startswith("$"):
        raise SessionError(
            "no_model",
            f"the {facts['name']} weights ({facts['what']}) are yours to give: set {facts['path'][1:]} to their folder",
        )
    if not facts["build"]:
        raise SessionError(
            "no_model",
            f"there is no checkpoint in {facts['path']} ({facts['what']}); put it there, or take another --workload",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (path / "config.json").is_file():
            _build(facts, path)


def _build(facts: dict[str, Any], path: Path) -> None:
    beside = path.with_name(f"{path.name}.building")
    shutil.rmtree(beside, ignore_errors=True)
    target = beside.relative_to(ROOT).as_posix()
    arguments = [target if argument == facts["path"] else argument for argument in facts["build"]]
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise SessionError("build", f"`python {' '.join(facts['build'])}` failed: {last}")
    beside.replace(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the named model."""
    parser = argparse.ArgumentParser(prog="python -m workflows.build", description="Write a testbed's checkpoint.")
    parser.add_argument("model")
    name = parser.parse_args(arguments).model
    try:
        models = load_catalog().models
        if name not in models:
            raise WorkflowError(f"there is no model {name}{nearest(name, models)}")
        model = models[name]
        ensure_model({"name": name, "what": model.what, "path": model.path, "build": list(model.build)})
    except WorkflowError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
