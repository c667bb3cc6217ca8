"""How full a decode instance was: requests that ran, pages in use, experts that a step touched, idle time."""

import math

import pandas as pd

from reports.claims import Cell
from reports.experts import Experts, read_experts
from reports.material import Material
from reports.plans import instance_config, verify_width
from reports.tables.ladder import DECODE, VARIANT
from reports.tables.table import Table, show

_WITHOUT = "No routes were recorded for this testbed, so shares of experts are not known: np1d routes FILE."


def batches_table(material: Material) -> Table:
    """One row a cell of the decode ladder that has a valid session, published / ours where the report says it."""
    experts = read_experts(material.results.folder)
    rows, texts = [], []
    for row in material.rows(DECODE.suite, DECODE.workload):
        cell = Cell(DECODE.suite, row, DECODE.workload)
        if not row.startswith(VARIANT) and material.results.valid(cell):
            rows.append(_row(material, cell, experts))
            texts.append(_text(rows[-1]))
    told = f"Experts: {experts.source}." if experts.source else _WITHOUT
    return Table(
        name="batches",
        title="Decode batches: how full they were",
        caption="Medians over the decode steps inside the windows; published / ours. The report prints medians for its "
        "first and last row. Pages over Lp + N x Ls: mean pages in use over shared whole pages once and N times the "
        "rest of a prompt with its answer so far, N the requests that hold memory. Idle: share of the windows' "
        f"middle three fifths in which the device ran no step. {told}",
        frame=pd.DataFrame(rows),
        shown=pd.DataFrame(texts),
        headers={
            "row": "row",
            "running": "requests running",
            "limit": "limit",
            "pages": "pages in use, %",
            "formula": "pages over Lp + N x Ls, %",
            "rows": "rows a step",
            "experts": "experts touched, %",
            "idle": "device idle, %",
        }
        if rows
        else {},
        empty="No row of the decode ladder has a valid session.",
    )


def further_points(material: Material) -> Table:
    """Decode rows at other loads, shared prefixes or shapes than the ladder's, one line a cell with a valid session."""
    rows = []
    for cell in material.results.cells:
        sessions = material.results.valid(cell)
        if cell.suite != DECODE.suite or cell.workload == DECODE.workload or not sessions:
            continue
        plan = sessions[-1].plan
        shape = plan.get("conditions", {}).get("scaled", {})
        rows.append(
            {
                "row": cell.row,
                "workload": cell.workload,
                "model": plan.get("model", {}).get("name"),
                "admission": sessions[-1].labels.get("admission"),
                "shared_pct": 100 * shape["shared_ratio"] if "shared_ratio" in shape else None,
                "in_flight": shape.get("concurrency"),
                "limit": _whole(material.ours(cell, "running_limit").value),
                "running": _whole(material.ours(cell, "running_p50").value),
                "output_tok_s": material.ours(cell, "output_tok_s").value,
                "tpot_mean_ms": material.ours(cell, "tpot_mean_ms").value,
                "pages_pct": material.ours(cell, "pages_used_pct").value,
                "sessions": material.ours(cell, "output_tok_s").sessions,
            }
        )
    return Table(
        name="further_points",
        title="Decode at other loads and shapes",
        caption="One load for all rows (sp99_9_same), each row's own limit (sp99_9_tuned), nothing shared (unshared), "
        "and the layer shapes of one rank of TP4 without expert parallelism (sp99_9_tp).",
        frame=pd.DataFrame(rows),
        headers={
            "row": "row",
            "workload": "workload",
            "model": "model",
            "admission": "admission",
            "shared_pct": "shared, %",
            "in_flight": "in flight",
            "limit": "limit",
            "running": "running",
            "output_tok_s": "output tok/s",
            "tpot_mean_ms": "TPOT mean, ms",
        }
        if rows
        else {},
        empty="None was run: np1d run decode/ROW --workload unshared, sp99_9_tp, sp99_9_same or sp99_9_tuned.",
    )


def _row(material: Material, cell: Cell, experts: Experts) -> dict[str, object]:
    config = instance_config(material.results.valid(cell)[-1].plan, "decode")
    width = verify_width(config) if config else 1
    rows = material.ours(cell, "step_rows_p50").value
    return {
        "row": cell.row,
        "sessions": material.ours(cell, "output_tok_s").sessions,
        "published_running": material.published(cell, "running_p50"),
        "ours_running": material.ours(cell, "running_p50").value,
        "published_limit": material.published(cell, "running_limit"),
        "ours_limit": material.ours(cell, "running_limit").value,
        "published_pages_pct": material.published(cell, "pages_used_pct"),
        "ours_pages_pct": material.ours(cell, "pages_used_pct").value,
        "pages_of_formula_pct": material.mean(cell, "pages_of_formula_pct"),
        "rows_a_step": rows,
        "experts_pct": math.nan if math.isnan(rows) else 100 * experts.share(rows / width, width),
        "idle_pct": material.mean(cell, "idle_decode_pct"),
    }


def _text(row: dict[str, object]) -> dict[str, object]:
    return {
        "row": row["row"],
        "running": _pair(row["published_running"], row["ours_running"]),
        "limit": _pair(row["published_limit"], row["ours_limit"]),
        "pages": f"{show(row['published_pages_pct'])} / {show(row['ours_pages_pct'])}",
        "formula": row["pages_of_formula_pct"],
        "rows": _whole(row["rows_a_step"]),
        "experts": row["experts_pct"],
        "idle": row["idle_pct"],
    }


def _pair(published: object, ours: object) -> str:
    return f"{show(_whole(published))} / {show(_whole(ours))}"


def _whole(value: object) -> object:
    return round(value) if isinstance(value, float) and not math.isnan(value) else value
