"""`np1d profile ROW`: the ops of one prefill chunk and one decode step of a row, at its lengths, in a process of ours.

One instance does both halves, so no transfer and no router is in the picture. The result lies beside the row's sessions
as `profile.json`; it explains a row and is held against nothing. A trace that `python -m stack.engine.bench
--profile-steps` made elsewhere is taken in as `kernels.json`, and recorded routes as the share of experts that a step
touches.
"""

import json
import subprocess
import sys
from pathlib import Path

from workflows.build import ensure_model
from workflows.catalog import load_catalog
from workflows.doctor import require_gpus
from workflows.engines import stack
from workflows.errors import WorkflowError
from workflows.planner import plan_session
from workloads.files import write_json

ROOT = Path(__file__).resolve().parent.parent
PROFILE_FILE = "profile.json"
KERNELS_FILE = "kernels.json"
EXPERTS_FILE = "experts.json"
REQUESTS_PER_SLOT = 2


def profile_row(row: str, workload: str, testbed_id: str, results: Path) -> tuple[int, Path]:
    """Profile a row; prints its table. Returns the exit code and where the result lies. Raises WorkflowError."""
    catalog = load_catalog()
    entry = catalog.row(row)
    if entry.suite.kind != "serving":
        raise WorkflowError(f"{entry.name} serves no load; profile a row of prefill, decode, integrated or drafters")
    plan = plan_session(entry.name, workload or entry.workloads[0], testbed_id=testbed_id, catalog=catalog)
    if plan.cell.engine != "stack":
        raise WorkflowError(f"{testbed_id} serves the published engine, which is not ours to profile; --testbed h200x1")
    require_gpus(catalog, testbed_id)
    halves = {half: dict(settings) for half, settings in plan.settings.items()}
    settings = stack.colocated_settings(halves, measures="prefill" if plan.cell.suite == "prefill" else "decode")
    gpus = tuple(range(catalog.testbed(testbed_id).gpus_per_instance))
    ensure_model(plan.model)
    folder = results / Path(plan.cell.folder).parent
    config = folder / "profile_config.json"
    write_json(config, stack.instance("single", "single", settings, gpus).files["single.json"])
    shape = plan.conditions["scaled"]
    words = {
        "--input": shape["input_len"],
        "--output": max(16, shape["output_len"]),
        "--shared": round(shape["input_len"] * shape["shared_ratio"]),
        "--concurrency": shape["concurrency"],
        "--num": REQUESTS_PER_SLOT * shape["concurrency"],
    }
    command = [sys.executable, "-m", "stack.profile", str(config), "--out", str(folder / PROFILE_FILE)]
    command += [str(part) for pair in words.items() for part in pair]
    return subprocess.run(command, cwd=ROOT, check=False).returncode, folder / PROFILE_FILE


def take_in_trace(row: str, workload: str, testbed_id: str, results: Path, source: Path) -> Path:
    """Put a trace beside the row's sessions; `source` is what the bench printed. Raises WorkflowError otherwise."""
    catalog = load_catalog()
    entry = catalog.row(row)
    plan = plan_session(entry.name, workload or entry.workloads[0], testbed_id=testbed_id, catalog=catalog)
    path = results / Path(plan.cell.folder).parent / KERNELS_FILE
    write_json(path, {"schema": "kernels/1", **_printed(source)})
    return path


def take_in_routes(testbed_id: str, results: Path, source: Path) -> Path:
    """Count the experts that steps touch on recorded routes, for a testbed's report. Raises WorkflowError."""
    load_catalog().testbed(testbed_id)
    if not source.is_file():
        raise WorkflowError(f"{source} is no file; give what kernels.moe_routes recorded")
    command = [sys.executable, "-m", "stack.tune_moe.touched", str(source.resolve())]
    counted = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if counted.returncode:
        raise WorkflowError((counted.stderr.strip().splitlines() or ["the routes could not be counted"])[-1])
    path = results / testbed_id / EXPERTS_FILE
    write_json(path, json.loads(counted.stdout))
    return path


def _printed(source: Path) -> dict[str, object]:
    try:
        lines = source.read_text(errors="replace").splitlines()
    except OSError as error:
        raise WorkflowError(f"{source} cannot be read: {error.strerror}") from None
    for line in reversed(lines):
        if line.startswith("{"):
            try:
                body = json.loads(line)
            except ValueError:
                continue
            if isinstance(body, dict) and isinstance(body.get("profile"), dict):
                return {name: body[name] for name in ("profile", "impls", "doubts") if name in body}
    raise WorkflowError(f"{source} holds no trace: give what python -m stack.engine.bench --profile-steps N printed")
