"""Where a result comes from: commit, uncommitted changes, versions, machine.

Knows nothing of what was measured. Facts that a machine does not give are null. No host name, user or path is recorded.
"""

import hashlib
import importlib.metadata as metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil

from workloads.files import read_json

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "torch",
    "triton",
    "nixl",
    "sglang-router",
    "snakemake",
    "aiohttp",
    "numpy",
    "tilelang",
    "sgl-deep-gemm",
    "fla-core",
)
_GPU_FIELDS = "name,driver_version,memory.total,clocks.max.sm,power.limit,mig.mode.current"


def facts() -> dict[str, Any]:
    """Everything about code and machine."""
    return {"code": code(), "packages": packages(), "machine": machine(), "gpus": gpus()}


def code() -> dict[str, Any]:
    """The commit, and a digest of what differs from it; on a machine that has the files alone, what came with them."""
    carried = ROOT / "build" / "commit.json"
    if carried.exists() and not (ROOT / ".git").exists():
        told: dict[str, Any] = read_json(carried)
        return told
    commit = _output(["git", "rev-parse", "HEAD"])
    difference = _output(["git", "diff", "HEAD", "--", "stack", "workloads", "workflows"]) if commit else None
    return {
        "commit": commit,
        "diff_sha256": hashlib.sha256(difference.encode()).hexdigest() if difference else None,
        "diff_files": sorted({line[6:] for line in difference.splitlines() if line.startswith("+++ b/")})
        if difference
        else [],
    }


def packages() -> dict[str, str | None]:
    """Versions of what a measurement depends on."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def machine() -> dict[str, Any]:
    """Processor, memory and kernel."""
    return {
        "cpu": _cpu_model(),
        "num_cpus": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "load_average": list(os.getloadavg()),
    }


def gpus() -> list[dict[str, str]]:
    """What nvidia-smi says of each GPU; empty where there is none."""
    names = _GPU_FIELDS.split(",")
    return [dict(zip(names, values, strict=False)) for values in _of_each_gpu(_GPU_FIELDS)]


def gpu_uuids() -> list[str]:
    """The name of each GPU that holds wherever it is plugged in, by index. Never recorded."""
    return [values[0] for values in _of_each_gpu("uuid")]


def _of_each_gpu(fields: str) -> list[list[str]]:
    if shutil.which("nvidia-smi") is None:
        return []
    text = _output(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]) or ""
    return [[part.strip() for part in line.split(",")] for line in text.splitlines() if line]


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
