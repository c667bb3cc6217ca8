"""What can be known to fail before anything is started, each as one sentence with the way out."""

import errno
import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path

import psutil

from workflows.build import ensure_model
from workflows.data import check_data
from workflows.errors import SessionError
from workflows.plan import Plan
from workflows.provenance import gpu_uuids
from workflows.supervisor import given
from workflows.supervisor.devices import check_there, host_gpus, planned_gpus

ROOT = Path(__file__).resolve().parent.parent.parent
NEEDED_DISK_BYTES = 256 * 2**20
FULL_BYTES = 2**20
"""With less than this free, a program that ended was in all likelihood ended by it."""
FULL_WORDS = ("No space left on device", "Disk quota exceeded")


def check(plan: Plan, folder: Path) -> None:
    """Raises SessionError for the first thing that is missing; `folder` is where the session writes."""
    _check_packages(plan)
    _check_gpus(plan)
    given.check(plan)
    _check_memory(plan.limits.needed_memory_gib)
    free = shutil.disk_usage(folder).free
    if free < NEEDED_DISK_BYTES:
        raise disk_full(f"{free / 2**20:.0f} MiB are left")
    check_data(plan.data)
    if plan.model:
        ensure_model(plan.model)


def disk_full(what: str) -> SessionError:
    """The error of a session for which the disk had no room."""
    return SessionError(
        "disk_full",
        f"the disk is full ({what}); free some space, a session needs {NEEDED_DISK_BYTES >> 20} MiB, and measure "
        "this one again: what was measured before is kept",
    )


def is_disk_full(folder: Path, last_words: Sequence[str]) -> bool:
    """Whether a program that ended did so for want of room: it said so, or there was no room to say anything."""
    told = any(words in line for line in last_words for words in FULL_WORDS)
    return told or shutil.disk_usage(folder).free < FULL_BYTES


def refusal(error: OSError) -> SessionError:
    """What the system refused, as the error of a session."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(error.strerror or "no room")
    return SessionError("os_error", f"the system refused: {error.strerror or error}")


def _check_packages(plan: Plan) -> None:
    commands = [*(process.command for process in plan.processes), plan.client.command]
    modules = {command[command.index("-m") + 1].split(".")[0] for command in commands if "-m" in command}
    if "stack" in modules:
        modules |= {"torch", "nixl"} if any(p.role == "prefill" for p in plan.processes) else {"torch"}
    for module in sorted(modules):
        if importlib.util.find_spec(module) is None:
            raise SessionError(
                "missing_package", f"the Python package {module} is not installed; `make env` installs all"
            )


def _check_gpus(plan: Plan) -> None:
    wanted = planned_gpus(plan)
    if not wanted:
        return
    there = gpu_uuids()
    check_there(there)
    host_gpus(wanted)
    if len(there) <= max(wanted):
        gpus = f"{len(wanted)} GPU{'s' * (len(wanted) > 1)}"
        raise SessionError(
            "no_gpu",
            f"the testbed {plan.cell.testbed} needs {gpus} and this machine shows {len(there) or 'none'}; "
            "use --testbed cpu, or run the plan on a GPU host and `np1d import` its results",
        )


def _check_memory(needed_gib: float) -> None:
    free = psutil.virtual_memory().available / 2**30
    if free < needed_gib:
        raise SessionError(
            "no_memory", f"{free:.1f} GiB of memory are free and the session needs {needed_gib:.1f}; end other programs"
        )
