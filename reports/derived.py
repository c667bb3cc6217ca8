"""Metrics that no client can see, read from what else a valid session left: the engine's log and the scored answers.

`running_limit` is the decode side's; the phases of a cycle are medians over verify steps inside the windows. A metric
that a session's files do not give is absent.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reports.engine_log import in_windows, instance_views, step_lines, verify_cycle


def derived_metrics(
    folder: Path, metrics: Mapping[str, float | None], client: Mapping[str, Any], plan: Mapping[str, Any]
) -> dict[str, float | None]:
    """`running_limit`, `draft_ms`, `verify_ms`, `cycle_ms`, `amortized_ms`, `accuracy_pct` as far as they exist."""
    found: dict[str, float | None] = {}
    lines = step_lines(folder)
    decoders = {process["name"] for process in plan.get("processes", ()) if process.get("role") in ("decode", "single")}
    limits = [v.running_limit for v in instance_views(lines) if v.name in decoders and v.running_limit]
    if limits:
        found["running_limit"] = float(sum(limits))
    if cycle := verify_cycle(in_windows(lines, client)):
        found |= {"draft_ms": cycle.phases_ms["draft"], "verify_ms": cycle.phases_ms["verify"]}
        found["cycle_ms"] = cycle.cycle_ms
        if accepted := metrics.get("accept_length"):
            found["amortized_ms"] = cycle.cycle_ms / accepted
    if (accuracy := accuracy_pct(folder)) is not None:
        found["accuracy_pct"] = accuracy
    return found


def accuracy_pct(folder: Path) -> float | None:
    """Mean share of right answers over the runs of a VALID `accuracy.json`, in per cent."""
    file = folder / "accuracy.json"
    if not file.exists():
        return None
    body = json.loads(file.read_text())
    shares = [run["accuracy"] for run in body.get("runs", ()) if run.get("accuracy") is not None]
    return 100 * sum(shares) / len(shares) if shares and body.get("verdict") == "VALID" else None
