"""What can be known to fail before anything is started, each as one sentence with the way out."""

import importlib.util
import shutil
from pathlib import Path

import psutil

from workflows.build import ensure_model
from workflows.errors import SessionError
from workflows.plan import Plan
from workflows.provenance import gpus

ROOT = Path(__file__).resolve().parent.parent.parent
NEEDED_DISK_BYTES = 256 * 2**20


def check(plan: Plan) -> None:
    """Raises SessionError for the first thing that is missing."""
    _check_packages(plan)
    _check_gpus(plan)
    _check_memory(plan.limits.needed_memory_gib)
    free = shutil.disk_usage(ROOT).free
    if free < NEEDED_DISK_BYTES:
        raise SessionError("disk_full", f"only {free / 2**20:.0f} MiB are free on the disk; a session needs 256 MiB")
    if plan.model:
        ensure_model(plan.model)


def _check_packages(plan: Plan) -> None:
    commands = [*(process.command for process in plan.processes), plan.client.command]
    modules = {command[command.index("-m") + 1].split(".")[0] for command in commands if "-m" in command}
    if "stack" in modules:
        modules |= {"torch", "nixl"} if any(p.role in ("prefill", "decode") for p in plan.processes) else {"torch"}
    for module in sorted(modules):
        if importlib.util.find_spec(module) is None:
            raise SessionError(
                "missing_package", f"the Python package {module} is not installed; `make env` installs all"
            )


def _check_gpus(plan: Plan) -> None:
    wanted = {index for process in plan.processes for index in process.gpus}
    if not wanted:
        return
    there = len(gpus())
    if there <= max(wanted):
        raise SessionError(
            "no_gpu",
            f"the testbed {plan.cell.testbed} needs {len(wanted)} GPUs and this machine shows {there}; "
            "use --testbed cpu, or run the plan on a GPU host and `np1d import` its results",
        )


def _check_memory(needed_gib: float) -> None:
    free = psutil.virtual_memory().available / 2**30
    if free < needed_gib:
        raise SessionError(
            "no_memory", f"{free:.1f} GiB of memory are free and the session needs {needed_gib:.1f}; end other programs"
        )
