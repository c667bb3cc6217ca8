"""Kernels timed alone: each beside the one it is held against, and beside its floor."""

import pandas as pd

from reports.material import Material
from reports.tables.table import Table


def micro_table(material: Material) -> Table:
    """One row a session of the micro suite, then those rows of it that cannot run here."""
    rows: list[dict[str, object]] = []
    for session in material.results.sessions:
        if session.cell.suite != "micro":
            continue
        bench = session.plan.get("client", {}).get("workload", {}).get("bench", {})
        values = session.metrics
        rows.append(
            {
                "row": session.cell.row,
                "session": session.index,
                "op": bench.get("op"),
                "shape": bench.get("shape"),
                "impl": bench.get("impl"),
                "kernel_us": values.get("kernel_us"),
                "base": bench.get("base"),
                "base_us": values.get("base_us"),
                "speedup": values.get("speedup_ratio"),
                "of_floor_pct": _percent(values.get("of_floor_ratio")),
                "verdict": session.outcome,
                "reason": session.reason,
            }
        )
    if rows:
        measured = {row["row"] for row in rows}
        rows += [
            {"row": row, "verdict": state, "reason": why}
            for name, (state, why) in material.results.impossible.items()
            if (row := name.removeprefix("micro/")) != name and row not in measured
        ]
    return Table(
        name="micro",
        title="Kernels alone",
        caption="Median of 10 to 40 replays of a CUDA graph with cold caches, once the kernel equals its reference. A "
        "floor is the larger of least bytes over 4.8 TB/s and least operations over the unit's datasheet rate.",
        frame=pd.DataFrame(rows),
        empty="No kernel was timed alone on this testbed; on a GPU: np1d run micro.",
    )


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * ratio
