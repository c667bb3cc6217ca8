"""Baselines: valid sessions of earlier commits, comparable with a candidate's, never frozen and never taken on a FAIL.

A store is a folder with one file of JSON lines for each cell. A session is comparable when everything but the code is
alike: settings, workload, machine, version of measuring. The last ten of at most thirty days count.
"""

import json
import time
from pathlib import Path
from typing import Any

from reports.json_files import ALTERED, is_altered
from workflows.errors import WorkflowError
from workflows.identity import digest
from workflows.plan import read_plan
from workloads.files import read_json, write_atomically

MAX_SESSIONS = 10
MAX_AGE_S = 30 * 86400


def entry(folder: Path, metric: str) -> dict[str, Any]:
    """One valid session as the store keeps it. Raises WorkflowError when the session is no result."""
    try:
        metrics, provenance = read_json(folder / "metrics.json"), read_json(folder / "provenance.json")
        status = read_json(folder / "status.json")
    except (FileNotFoundError, ValueError):
        raise WorkflowError(f"{folder} is not a measured session") from None
    if is_altered(metrics):
        raise WorkflowError(ALTERED)
    if metrics["validity"]["verdict"] != "VALID":
        raise WorkflowError("; ".join(metrics["validity"]["reasons"]))
    value = metrics["metrics"].get(metric)
    if value is None:
        raise WorkflowError(f"{metric} has no value: {metrics['metrics_missing'].get(metric, 'unknown metric')}")
    return {
        "key": comparison_key(folder, provenance),
        "metric": metric,
        "value": value,
        "passes": [p.get(metric) for p in metrics["passes"]],
        "commit": provenance["code"]["commit"],
        "started_unix_s": status["started_unix_s"],
    }


def comparison_key(folder: Path, provenance: dict[str, Any]) -> str:
    """Digest of everything that must be alike before two sessions may be compared."""
    plan = read_plan(folder / "plan.json")
    machine = {name: provenance["machine"][name] for name in ("cpu", "num_cpus", "memory_gib", "architecture")}
    gpus = [{name: gpu[name] for name in ("name", "driver_version", "power.limit")} for gpu in provenance["gpus"]]
    packages = {
        name: version for name, version in provenance["packages"].items() if name in ("python", "torch", "nixl")
    }
    return digest({"plan": plan.key, "machine": machine, "gpus": gpus, "packages": packages})


def load(store: Path, cell: str, key: str, metric: str, *, now_s: float | None = None) -> list[dict[str, Any]]:
    """Comparable sessions of a cell, the newest ten, oldest first."""
    path = store / f"{cell.replace('/', '_')}.jsonl"
    if not path.exists():
        return []
    now = time.time() if now_s is None else now_s
    lines = [
        _parsed(path, number, line) for number, line in enumerate(path.read_text().splitlines(), 1) if line.strip()
    ]
    fitting = [
        line
        for line in lines
        if line["key"] == key and line["metric"] == metric and now - line["started_unix_s"] <= MAX_AGE_S
    ]
    return sorted(fitting, key=lambda line: float(line["started_unix_s"]))[-MAX_SESSIONS:]


def _parsed(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        session = json.loads(line)
        if not {"key", "metric", "value", "started_unix_s"} <= session.keys():
            raise ValueError("fields are missing")
    except (ValueError, AttributeError):
        raise WorkflowError(f"{path}:{number} is no session of a store; take the line out") from None
    return dict(session)


def add(store: Path, cell: str, entries: list[dict[str, Any]]) -> int:
    """Append sessions that the store does not have yet; returns how many."""
    path = store / f"{cell.replace('/', '_')}.jsonl"
    known = path.read_text().splitlines() if path.exists() else []
    lines = [line for e in entries if (line := json.dumps(e, sort_keys=True)) not in known]
    write_atomically(path, lambda temporary: temporary.write_text("\n".join([*known, *lines]) + "\n"))
    return len(lines)
