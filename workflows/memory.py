"""What an instance would allocate: asked of the engine by command, so that no weights are loaded here.

Knows which instance of a plan is asked about, and nothing of the equation.
"""

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workflows.build import ensure_model
from workflows.errors import WorkflowError
from workflows.identity import canonical
from workflows.plan import ProcessPlan

Memory = dict[str, Any]
"""A memory plan, flat: counts, limits, notes, and every term in bytes as `bytes.<term>`."""
PUBLISHED_ENGINE = "the published engine plans its memory itself; --testbed h200x1 asks for ours"
ROOT = Path(__file__).resolve().parent.parent


def memory_plan(configuration: dict[str, Any], model: dict[str, Any], device_bytes: int | None = None) -> Memory:
    """The memory plan of one instance. `model`: a plan's facts of it; `device_bytes`: what its device has free.

    Raises WorkflowError with the engine's sentence when the configuration cannot fit.
    """
    ensure_model(model)
    answer: Memory = json.loads(_asked(canonical(configuration), "--json", *_free(device_bytes)))
    return answer


def memory_text(configuration: dict[str, Any], model: dict[str, Any], device_bytes: int | None = None) -> str:
    """The same as a table of terms for people."""
    ensure_model(model)
    return _asked(canonical(configuration), *_free(device_bytes))


def configuration_of(process: ProcessPlan) -> dict[str, Any]:
    """The configuration file of an instance of our own engine. Raises WorkflowError for another engine's."""
    name = f"{process.name}.json"
    if name not in process.files:
        raise WorkflowError(PUBLISHED_ENGINE)
    return dict(process.files[name])


def generating_instance(processes: Iterable[ProcessPlan]) -> ProcessPlan:
    """The first decode instance, or the only instance. Raises WorkflowError where none generates."""
    for process in processes:
        if process.role in ("decode", "single"):
            return process
    raise WorkflowError("no instance of this row generates, so its memory gives no running limit")


def _free(device_bytes: int | None) -> tuple[str, ...]:
    return ("--free-bytes", str(device_bytes)) if device_bytes else ()


@functools.cache
def _asked(configuration: str, *flags: str) -> str:
    with tempfile.TemporaryDirectory(prefix="np1d-plan-") as folder:
        path = Path(folder) / "instance.json"
        path.write_text(configuration)
        command = [sys.executable, "-m", "stack.plan", str(path), *flags]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorkflowError((done.stderr.strip().splitlines() or ["stack.plan ended without a word"])[-1])
    return done.stdout
