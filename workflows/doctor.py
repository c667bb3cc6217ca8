"""Is this machine able to run a testbed? Every finding is a fact with, where it is bad, the way out."""

import dataclasses
import importlib.metadata as metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from workflows import provenance
from workflows.catalog import Catalog
from workflows.errors import SessionError, WorkflowError
from workflows.schema import Testbed
from workflows.supervisor import devices, given, host, ports
from workloads.client import Target, run_workload
from workloads.records import read_requests
from workloads.spec import resolve as resolve_workload

ROOT = Path(__file__).resolve().parent.parent
NEEDED = {"torch": "the engine", "nixl": "cache transfer", "sglang-router": "the router", "snakemake": "the workflow"}


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One fact. `is_ok` None: only told. What is not ok has a way out, here or in `found`."""

    what: str
    found: str
    is_ok: bool | None = None
    way_out: str = ""


def examine(catalog: Catalog, testbed_id: str) -> Iterator[Finding]:
    """All findings for a testbed. Raises CatalogError for an unknown one."""
    testbed = catalog.testbed(testbed_id)
    yield _python()
    yield from _packages()
    yield Finding("processors", f"{os.cpu_count()} ({provenance.machine()['cpu']})")
    yield _memory(testbed.session.needed_memory_gib)
    yield _disk()
    yield _ports(testbed.session.port_base)
    yield from _gpus(testbed.gpus_per_host)
    yield _model(catalog, testbed)
    yield from _environments(catalog, testbed)
    yield from _leftovers()


def require_gpus(catalog: Catalog, testbed: str) -> None:
    """Refuse a testbed with GPUs on a machine without. Raises WorkflowError with the ways that remain."""
    if catalog.testbed(testbed).platform != "cuda":
        return
    there = provenance.gpu_uuids()
    devices.check_there(there)
    if not there:
        raise WorkflowError(
            f"testbed {testbed} needs NVIDIA GPUs and this machine shows none; use --testbed cpu, or `np1d plan` here, "
            "`python -m workflows.session` on the GPU host, and `np1d import` its results"
        )


def _python() -> Finding:
    fits = (3, 11) <= sys.version_info[:2] <= (3, 12)
    return Finding("python", platform.python_version(), fits, "use Python 3.11 or 3.12: make env")


def _packages() -> Iterator[Finding]:
    for name, purpose in NEEDED.items():
        try:
            yield Finding(name, metadata.version(name), True)
        except metadata.PackageNotFoundError:
            yield Finding(name, f"missing ({purpose})", False, "make env installs it")


def _memory(needed: float) -> Finding:
    free = psutil.virtual_memory().available / 2**30
    return Finding("free memory", f"{free:.1f} GiB, needed {needed:.1f}", free >= needed, "end other programs")


def _disk() -> Finding:
    free = shutil.disk_usage(ROOT).free / 2**30
    return Finding("free disk", f"{free:.1f} GiB", free >= 1.0, "free at least 1 GiB")


def _ports(base: int) -> Finding:
    taken = [port for port in range(base, base + ports.BLOCK) if not ports.is_free(port)]
    found = f"{base} to {base + ports.BLOCK - 1} free" if not taken else f"taken: {', '.join(map(str, taken[:5]))}"
    return Finding("ports", found, None if taken else True, "sessions will take the next free block")


def _gpus(needed: int) -> Iterator[Finding]:
    found = provenance.gpus()
    names = ", ".join(sorted({gpu["name"] for gpu in found})) or "none"
    enough = None if not needed else len(found) >= needed
    if needed:
        try:
            devices.check_there(provenance.gpu_uuids())
        except SessionError as error:
            yield Finding("shown GPUs", str(error), False)
    yield Finding("GPUs", f"{len(found)} ({names}), needed {needed}", enough, "use --testbed cpu on this machine")


def _model(catalog: Catalog, testbed: Testbed) -> Finding:
    name, model = testbed.model, catalog.models[testbed.model]
    if model.path.startswith("$"):
        there = (Path(given.fill(model.path)) / "config.json").is_file()
        found = f"{name} {'is there' if there else f'is not under {model.path}'}"
        is_ok = there if testbed.placement == "local" else None
        return Finding("model", found, is_ok, f"set {model.path[1:]} to the folder of {model.what}")
    there = (ROOT / model.path / "config.json").is_file()
    return Finding("model", f"{name} {'is there' if there else 'will be built'}", bool(there or model.build))


def _environments(catalog: Catalog, testbed: Testbed) -> Iterator[Finding]:
    """Of the published engine, where sessions start it on this host."""
    if testbed.engine != "sglang" or testbed.placement != "local":
        return
    for build, variable in catalog.engines["sglang"].environments.items():
        there = os.access(f"{given.fill(variable)}/bin/sglang", os.X_OK)
        found = f"{build} {'is there' if there else f'is not under {variable}'}"
        yield Finding("sglang", found, there, "np1d plan ROW --commands says how it is made")


def _leftovers() -> Iterator[Finding]:
    ended = host.sweep(host.state_folder())
    for line in ended:
        yield Finding("left over", f"ended {line}", None)


def client_ceiling() -> Iterator[str]:
    """What the load client reaches against a server that answers at once: no engine can be measured beyond it."""
    for streams in (16, 128):
        yield _ceiling(streams)


def _ceiling(streams: int) -> str:
    workload = resolve_workload(
        "decode",
        {"input_len": 1024, "output_len": 256, "concurrency": streams, "passes": 1, "requests_per_pass": 2 * streams,
         "min_window_s": 0.0, "page_size": 64},
    )  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, "-m", "workloads.null_server"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        said = server.stdout.readline().split()
        if not said:
            raise WorkflowError("the client's test server did not start; python -m workloads.null_server says why")
        with tempfile.TemporaryDirectory() as folder:
            facts = run_workload(workload, Target(url=said[-1]), Path(folder), progress=False)
            requests = read_requests(Path(folder))
        measured = requests[requests["phase"] == "measured"]
        tokens = int(measured["output_tokens"].sum())
        seconds = float(measured["end_s"].max() - measured["start_s"].min())
    finally:
        server.communicate(timeout=10)
    lag = facts["passes"][0].get("loop_lag_p99_ms")
    rates = f"{tokens / seconds:,.0f} tokens/s, {len(measured) / seconds:,.0f} requests/s"
    return f"{streams:4} streams: {rates}, event loop late by {lag} ms (p99)"
