"""Every claim, ratios first. A row of a published table becomes claims about our cell of the same name.

Ratios compare a row with its ladder's baseline and with the row before it; absolutes stand beside them. Claims that
need no run are computed from the published geometry in `reports.claims.arithmetic`.
"""

from collections.abc import Iterator
from typing import Any

from reports.claims.arithmetic import computed_claims
from reports.claims.claim import Cell, Claim, published_h200

_DECODE_ROWS = {"capacity_adjusted_baseline": "baseline"}
_INTEGRATED = {0: "sp0", 50: "sp50", 93.75: "sp93_75"}
_DRAFTERS = {"MTP718": "mtp718", "DFlash2_block8": "dflash2_block8"}


def claims() -> tuple[Claim, ...]:
    """All claims in the order of a report: ratios, absolutes, computed."""
    measured = [*_prefill(), *_decode(), *_integrated(), *_drafters(), *_accuracy()]
    ratios = [claim for claim in measured if claim.kind == "ratio"]
    absolutes = [claim for claim in measured if claim.kind == "absolute"]
    return (*ratios, *absolutes, *computed_claims())


def _prefill() -> Iterator[Claim]:
    rows = published_h200()["prefill_ladder"]["rows"]
    cells = [Cell("prefill", row["id"], "prefill_only") for row in rows]
    yield from _ladder(rows, cells, "input_tok_s", "prefill table")
    for row, cell in zip(rows, cells, strict=True):
        if row["mean_ttft_s"] is not None:
            yield _absolute(cell, "ttft_mean_s", row["mean_ttft_s"], "s", "prefill table", is_better_higher=False)


def _decode() -> Iterator[Claim]:
    rows = published_h200()["decode_ladder"]["rows"]
    cells = [Cell("decode", _DECODE_ROWS.get(row["id"], row["id"]), "sp99_9") for row in rows]
    yield from _ladder(rows, cells, "output_tok_s", "decode table")
    limits = [float(row["max_running_requests"]) for row in rows]
    for i, (row, cell) in enumerate(zip(rows, cells, strict=True)):
        source = "decode table"
        yield _absolute(cell, "tpot_mean_ms", row["mean_tpot_ms"], "ms", source, is_better_higher=False)
        yield _absolute(cell, "running_limit", limits[i], "requests", source)
        if i:
            yield _ratio(cell, cells[0], "running_limit", limits[i] / limits[0], source)
    yield from _batches(cells[0], cells[-1])
    tuned = published_h200()["moe_tuning"]["tuned"]
    gain = tuned["output_tok_s_after"] / tuned["output_tok_s_before"]
    tiled, tuned_tiles = (Cell("decode", row, "sp99_9") for row in ("triton_experts", "triton_experts_tuned"))
    yield _ratio(tuned_tiles, tiled, "output_tok_s", gain, "expert tuning paragraph")


def _batches(*cells: Cell) -> Iterator[Claim]:
    """How many requests ran and how full the pages were, as the report says of its first and its last row."""
    report = published_h200()
    active = report["decode_ladder"]["scheduler_samples"]["median_active"].values()
    for cell, running, budget in zip(cells, active, report["memory_budget"]["rows"], strict=True):
        share = budget["median_kv_occupancy_pct"]
        yield _absolute(cell, "running_p50", running, "requests", "scheduler samples")
        yield _absolute(cell, "pages_used_pct", share, "%", "memory table", is_better_higher=False)


def _ladder(rows: list[dict[str, Any]], cells: list[Cell], metric: str, source: str) -> Iterator[Claim]:
    for i, (row, cell) in enumerate(zip(rows, cells, strict=True)):
        yield _absolute(cell, metric, row[metric], "tokens/s", source)
        if i:
            yield _ratio(cell, cells[0], metric, row[metric] / rows[0][metric], source)
        if i > 1:
            yield _ratio(cell, cells[i - 1], metric, row[metric] / rows[i - 1][metric], source)


def _integrated() -> Iterator[Claim]:
    source = "3P1D table"
    for row in published_h200()["e2e_3p1d"]["rows"]:
        workload = _INTEGRATED[row["shared_prefix_pct"]]
        base, cell = (Cell("integrated", name, workload) for name in ("baseline", "optimized"))
        yield _ratio(cell, base, "output_tok_s", row["output_speedup"], source)
        yield _absolute(cell, "output_tok_s", row["optimized"]["output_tok_s"], "tokens/s", source)
        for side, name in ((base, "baseline"), (cell, "optimized")):
            for metric, value in row[name].items():
                is_latency = metric.startswith(("ttft", "tpot")) and value is not None
                if is_latency:
                    unit = "s" if metric.endswith("_s") else "ms"
                    yield _absolute(side, metric, value, unit, source, is_better_higher=False)


def _drafters() -> Iterator[Claim]:
    rows = {row["id"]: row for row in published_h200()["speculation"]["rows"]}
    cells = {name: Cell("drafters", row, "sp99_9") for name, row in _DRAFTERS.items()}
    source = "drafter table"
    metrics = {
        "draft_ms": ("draft_ms", "ms", False),
        "verify_ms": ("verify_ms", "ms", False),
        "full_cycle_ms": ("cycle_ms", "ms", False),
        "accept_len": ("accept_length", "tokens", True),
        "amortized_ms_per_accepted_token": ("amortized_ms", "ms", False),
        "output_tok_s": ("output_tok_s", "tokens/s", True),
    }
    for key, (metric, unit, higher) in metrics.items():
        first, second = (rows[name][key] for name in _DRAFTERS)
        pair = cells["DFlash2_block8"], cells["MTP718"]
        yield _ratio(*pair, metric, second / first, source, is_better_higher=higher)
        for name, cell in cells.items():
            yield _absolute(cell, metric, rows[name][key], unit, source, is_better_higher=higher)


def _accuracy() -> Iterator[Claim]:
    accuracy = published_h200()["e2e_3p1d"]["accuracy"]
    mean = sum(accuracy["runs"]) / len(accuracy["runs"])
    cell = Cell("accuracy", "gsm8k_optimized", "gsm8k_5shot")
    yield _absolute(cell, "accuracy_pct", mean, "%", "accuracy paragraph", band=0.015)


def _ratio(cell: Cell, base: Cell, metric: str, value: float, source: str, *, is_better_higher: bool = True) -> Claim:
    return Claim(
        id=f"{cell}:{metric}/{base.row}",
        kind="ratio",
        what=f"{metric} of {cell.row} over {base.row}",
        metric=metric,
        published=value,
        unit="x",
        source=source,
        cell=cell,
        base=base,
        is_better_higher=is_better_higher,
    )


def _absolute(
    cell: Cell,
    metric: str,
    value: float,
    unit: str,
    source: str,
    *,
    is_better_higher: bool = True,
    band: float = 0.05,
) -> Claim:
    return Claim(
        id=f"{cell}:{metric}",
        kind="absolute",
        what=f"{metric} of {cell.row}",
        metric=metric,
        published=float(value),
        unit=unit,
        source=source,
        cell=cell,
        is_better_higher=is_better_higher,
        band=band,
    )
