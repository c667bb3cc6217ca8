"""Metrics that no client can see, read from what else a valid session left: the engine's log and the scored answers.

`running_limit` is the decode side's; the phases of a cycle are medians over verify steps inside the windows.
`idle_*_pct` is the share of the windows' middle in which a half's devices ran no step. `pages_of_formula_pct` is the
decode side's pages in use over Lp + N x Ls, `step_rows_p50` the rows of its median step. A metric that a session's
files do not give is absent.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from reports.engine_log import Line, idle_share, in_windows, instance_views, step_lines, verify_cycle
from reports.page_load import pages_of_formula
from reports.plans import instance_config, instances, verify_width


def derived_metrics(
    folder: Path, metrics: Mapping[str, float | None], client: Mapping[str, Any], plan: Mapping[str, Any]
) -> dict[str, float | None]:
    """Everything of this module that the session gives."""
    lines = step_lines(folder)
    inside = in_windows(lines, client)
    found = _loads(inside, plan)
    for half in ("prefill", "decode"):
        if (idle := idle_share(lines, client, instances(plan, half))) is not None:
            found[f"idle_{half}_pct"] = 100 * idle
    limits = [v.running_limit for v in instance_views(lines) if v.name in instances(plan, "decode") and v.running_limit]
    if limits:
        found["running_limit"] = float(sum(limits))
    if (used := metrics.get("pages_used_p50_ratio")) is not None:
        found["pages_used_pct"] = 100 * used
    if cycle := verify_cycle(inside):
        found |= {"draft_ms": cycle.phases_ms["draft"], "verify_ms": cycle.phases_ms["verify"]}
        found["cycle_ms"] = cycle.cycle_ms
        if accepted := metrics.get("accept_length"):
            found["amortized_ms"] = cycle.cycle_ms / accepted
    if (accuracy := accuracy_pct(folder)) is not None:
        found["accuracy_pct"] = accuracy
    return found


def _loads(inside: list[Line], plan: Mapping[str, Any]) -> dict[str, float | None]:
    """How full decode steps were."""
    found: dict[str, float | None] = {}
    if (share := pages_of_formula(inside, plan)) is not None:
        found["pages_of_formula_pct"] = 100 * share
    config, names = instance_config(plan, "decode"), instances(plan, "decode")
    rows = [
        line["rows"]
        for line in inside
        if line.get("kind") in ("decode", "verify") and line.get("instance") in names and line.get("rows")
    ]
    if config and rows:
        found["step_rows_p50"] = float(median(rows) * verify_width(config))
    return found


def accuracy_pct(folder: Path) -> float | None:
    """Mean share of right answers over the runs of a VALID `accuracy.json`, in per cent."""
    file = folder / "accuracy.json"
    if not file.exists():
        return None
    body = json.loads(file.read_text())
    shares = [run["accuracy"] for run in body.get("runs", ()) if run.get("accuracy") is not None]
    return 100 * sum(shares) / len(shares) if shares and body.get("verdict") == "VALID" else None
