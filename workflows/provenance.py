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
CODE_FOLDERS = ("stack", "workloads", "workflows", "tools")
CODE_SUFFIXES = (".py", ".cu", ".cuh", ".json", ".yaml", ".smk", ".txt", ".sh")
"""Of the files that a session runs or reads; weights are no part of the code."""
_GPU_FIELDS = "name,driver_version,memory.total,clocks.max.sm,power.limit,mig.mode.current"


def facts() -> dict[str, Any]:
    """Everything about code and machine."""
    return {"code": code(), "packages": packages(), "machine": machine(), "gpus": gpus()}


def code() -> dict[str, Any]:
    """The commit, and a digest of what differs from it.

    A machine that was given the files alone, or as a checkout whose history lacks their commit, has a list of them in
    `build/commit.json` (`packed`). Its commit is recorded as ours only where every file is the one in the list.
    """
    here = _of_checkout()
    told = _carried()
    if told is None or (here["commit"] and _output(["git", "cat-file", "-t", told["commit"] or "none"])):
        return here
    listed, found = told.pop("files", {}), _digests()
    differs = sorted(name for name in listed | found if listed.get(name) != found.get(name))
    if not differs:
        return told
    if here["commit"]:
        return {**here, "packed_commit": told["commit"], "differs_from_packed": differs}
    changed = "".join(f"{name} {_file_digest(name)}\n" for name in differs)
    return {
        "commit": told["commit"],
        "diff_sha256": hashlib.sha256(f"{told['diff_sha256']}\n{changed}".encode()).hexdigest(),
        "diff_files": sorted({*told["diff_files"], *differs}),
    }


def packed() -> dict[str, Any]:
    """What `code` says here, and the digest of every file that a session runs: the contents of `build/commit.json`."""
    return {**code(), "files": _digests()}


def _carried() -> dict[str, Any] | None:
    path = ROOT / "build" / "commit.json"
    return dict(read_json(path)) if path.exists() else None


def _of_checkout() -> dict[str, Any]:
    commit = _output(["git", "rev-parse", "HEAD"]) if (ROOT / ".git").exists() else None
    if commit is None:
        return {"commit": None, "diff_sha256": None, "diff_files": []}
    difference = _output(["git", "diff", "HEAD", "--", *CODE_FOLDERS]) or ""
    new = (_output(["git", "ls-files", "--others", "--exclude-standard", "--", *CODE_FOLDERS]) or "").splitlines()
    whole = difference + "".join(f"\n{name} {_file_digest(name)}" for name in new)
    changed = {line[6:] for line in difference.splitlines() if line.startswith(("+++ b/", "--- a/"))}
    return {
        "commit": commit,
        "diff_sha256": hashlib.sha256(whole.encode()).hexdigest() if whole else None,
        "diff_files": sorted({*changed, *new}),
    }


def _digests() -> dict[str, str]:
    """SHA-256 of every code file by name, whether a version control knows it or not."""
    paths = (path for folder in CODE_FOLDERS for path in sorted((ROOT / folder).rglob("*")))
    names = [path.relative_to(ROOT).as_posix() for path in paths if path.suffix in CODE_SUFFIXES and path.is_file()]
    return {name: _file_digest(name) for name in names}


def _file_digest(name: str) -> str:
    path = ROOT / name
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "absent"


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
        "autogroup": _autogroup(),
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


def _autogroup() -> bool | None:
    """Whether Linux schedules every session of processes as one unit; None where it does not say."""
    try:
        return Path("/proc/sys/kernel/sched_autogroup_enabled").read_text().strip() == "1"
    except OSError:
        return None


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
