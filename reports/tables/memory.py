"""Where an instance's cache memory goes: pages and state slots, how full they were, and the running limit."""

import math

import pandas as pd

from reports.claims.claim import published_h200
from reports.engine_log import in_windows, instance_views
from reports.material import Material
from reports.plans import instance_config
from reports.tables.table import Table

_MIB = 2**20


def memory_table(material: Material) -> Table:
    """One row an instance of each cell's latest valid session."""
    rows = []
    for cell in material.results.cells:
        for session in material.results.valid(cell)[-1:]:
            roles = {process["name"]: process["role"] for process in session.plan.get("processes", ())}
            lines = session.steps()
            inside = {view.name: view for view in instance_views(in_windows(lines, session.client))}
            for view in instance_views(lines):
                role = roles.get(view.name, "")
                budget = (instance_config(session.plan, role) or {}).get("cache", {}).get("budget_bytes")
                used = inside.get(view.name, view)
                rows.append(
                    {
                        "cell": str(cell),
                        "instance": view.name,
                        "role": role,
                        "running_limit": view.running_limit,
                        "most_running": view.most_running,
                        "budget_mib": budget / _MIB if budget else math.nan,
                        "pages": view.pages_total,
                        "pages_mib": _mib(view.pages_total, view.page_bytes),
                        "pages_used_pct": _share(used.pages_used_p50, view.pages_total),
                        "slots": view.slots_total,
                        "slots_mib": _mib(view.slots_total, view.slot_bytes),
                        "slots_used_pct": _share(used.slots_used_p50, view.slots_total),
                    }
                )
    return Table(
        name="memory",
        title="Memory of our instances",
        caption="From the engine's step log: what the memory plan gave to pages and to state slots, and the median "
        "share in use inside the measured windows (pages that only the prefix cache holds are not in use). A page "
        "of the decode baseline has an index row for every token, as published; pooled keys fill one in four, and the "
        "plan names the rest as empty index rows.",
        frame=pd.DataFrame(rows).astype({"running_limit": "Int64"}) if rows else pd.DataFrame(),
        headers={
            "cell": "cell",
            "instance": "instance",
            "running_limit": "running limit",
            "most_running": "most running",
            "budget_mib": "budget, MiB",
            "pages": "pages",
            "pages_mib": "pages, MiB",
            "pages_used_pct": "pages used, %",
            "slots": "slots",
            "slots_mib": "slots, MiB",
            "slots_used_pct": "slots used, %",
        },
        empty="No valid session has an engine log.",
    )


def published_memory(_material: Material) -> Table:
    """The published budget of a decode GPU."""
    budget = published_h200()["memory_budget"]
    frame = pd.DataFrame(budget["rows"])
    return Table(
        name="memory_published",
        title="Published memory of a decode GPU",
        caption="One GPU of four. The report prints GB where its own arithmetic closes as GiB; the table of computed "
        "claims works the same values out from the model's shape.",
        frame=frame,
        headers={
            "id": "configuration",
            "target_kv_gb": "target KV, GiB",
            "draft_kv_gb": "draft KV, GiB",
            "state_and_conv_gb": "states and windows, GiB",
            "state_slots": "state slots",
            "median_kv_occupancy_pct": "median KV in use, %",
            "mem_fraction_static": "static memory fraction",
        },
    )


def _mib(count: int, item_bytes: int | None) -> float:
    return count * item_bytes / _MIB if item_bytes else math.nan


def _share(used: float, total: int) -> float:
    return 100 * used / total if total else math.nan
