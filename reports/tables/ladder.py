"""A ladder: its rows in published order, ours beside the published values, and what the pair may be called."""

import math
from dataclasses import dataclass

import pandas as pd

from reports.claims import Cell
from reports.estimates import Estimate
from reports.material import Material
from reports.tables.table import Table, show, times, with_interval


@dataclass(frozen=True, slots=True)
class LadderSpec:
    """Which suite, which throughput and which latency stand in its table."""

    suite: str
    workload: str
    metric: str
    latency: str
    latency_name: str
    title: str


PREFILL = LadderSpec("prefill", "prefill_only", "input_tok_s", "ttft_mean_s", "mean TTFT, s", "Prefill ladder")
DECODE = LadderSpec("decode", "sp99_9", "output_tok_s", "tpot_mean_ms", "mean TPOT, ms", "Decode ladder")

VARIANT = "without_"
"""Rows that begin so are everything on but one step; they stand in a table of their own."""

_CAPTION = (
    "Rows in the published order, then rows of our own. Each row keeps the settings of the row it builds on. "
    "[ ] is the 95 % interval over sessions (starts of the servers); one session has no interval. Ratios carry over "
    "between machines further than absolute values do, which stand in the next table."
)
_VALUES = (
    "What the ratios above are made of: the geometric mean over sessions with its 95 % interval in [ ], and n, their "
    "number."
)

_IDLE = " Idle is the share of the windows' middle three fifths in which the device ran no step."


def prefill_ladder(material: Material) -> Table:
    """The prefill ladder."""
    return ladder_table(material, PREFILL)


def decode_ladder(material: Material) -> Table:
    """The decode ladder."""
    return ladder_table(material, DECODE)


def prefill_values(material: Material) -> Table:
    """What the ratios of the prefill ladder are made of."""
    return values_table(material, PREFILL)


def decode_values(material: Material) -> Table:
    """What the ratios of the decode ladder are made of."""
    return values_table(material, DECODE)


def ladder_rows(material: Material, spec: LadderSpec) -> list[str]:
    """The ladder from the baseline on, without variants."""
    return [row for row in material.rows(spec.suite, spec.workload) if not row.startswith(VARIANT)]


def ladder_table(material: Material, spec: LadderSpec) -> Table:
    """One row a cell of the suite: ratios to the baseline and to the row before, published and ours; all in its CSV."""
    numbers, texts = _rows(material, spec)
    return Table(
        name=f"ladder_{spec.suite}",
        title=spec.title,
        caption=_CAPTION,
        frame=pd.DataFrame(numbers),
        shown=pd.DataFrame(texts),
        headers={
            "row": "row",
            "published_over": "published / baseline",
            "ours_over": "ours / baseline",
            "verdict": "verdict",
            "published_step": "published / row before",
            "ours_step": "ours / row before",
            "reason": "why",
        },
    )


def values_table(material: Material, spec: LadderSpec) -> Table:
    """The same rows in absolute values: throughput, latency and, where it matters, the running limit."""
    numbers, texts = _rows(material, spec)
    unit = "input tok/s" if spec.metric == "input_tok_s" else "output tok/s"
    return Table(
        name=f"values_{spec.suite}",
        title=f"{spec.title} in absolute values",
        caption=_VALUES + ("" if spec.suite == "decode" else _IDLE),
        frame=pd.DataFrame(numbers),
        shown=pd.DataFrame(texts),
        headers={
            "row": "row",
            "published": f"published, {unit}",
            "ours": f"ours, {unit}",
            "published_latency": f"published {spec.latency_name}",
            "ours_latency": f"our {spec.latency_name}",
            **({"limits": "running limit, published / ours"} if spec.suite == "decode" else {"idle": "device idle, %"}),
        },
    )


def _rows(material: Material, spec: LadderSpec) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Of each row its numbers and its texts."""
    rows = ladder_rows(material, spec)
    published = [row for row in rows if material.find(Cell(spec.suite, row, spec.workload), spec.metric)]
    numbers, texts = [], []
    for row in rows:
        previous = published[published.index(row) - 1] if row in published[1:] else None
        number, text = _row(material, spec, Cell(spec.suite, row, spec.workload), previous)
        numbers.append(number)
        texts.append(text)
    return numbers, texts


def _row(
    material: Material, spec: LadderSpec, cell: Cell, previous: str | None
) -> tuple[dict[str, object], dict[str, object]]:
    base = Cell(cell.suite, "baseline", cell.workload)
    before = Cell(cell.suite, previous, cell.workload) if previous else None
    ours, latency = material.ours(cell, spec.metric), material.ours(cell, spec.latency)
    limit = material.ours(cell, "running_limit")
    over = material.ours_over(cell, base, spec.metric)
    step = material.ours_over(cell, before, spec.metric) if before else Estimate(math.nan, math.nan, math.nan, 0)
    published = material.published(cell, spec.metric)
    published_over = published / material.published(base, spec.metric)
    published_step = published / material.published(before, spec.metric) if before else math.nan
    said = material.find(cell, spec.metric, "ratio", "baseline") or material.find(cell, spec.metric)
    failed = sum(session.outcome != "ok" for session in material.results.of(cell))
    verdict = said.verdict.outcome if said else "no published value"
    reason = _reason(said.verdict.reason if said else "a row of our own", failed)
    published_latency = material.published(cell, spec.latency)
    published_limit = material.published(cell, "running_limit")
    number: dict[str, object] = {
        "row": cell.row,
        "workload": cell.workload,
        "sessions": ours.sessions,
        "failed": failed,
        "ours": ours.value,
        "ours_low": ours.low,
        "ours_high": ours.high,
        "ours_over_baseline": over.value,
        "ours_over_baseline_low": over.low,
        "ours_over_baseline_high": over.high,
        "ours_over_row_before": step.value,
        "published": published,
        "published_over_baseline": published_over,
        "published_over_row_before": published_step,
        f"ours_{spec.latency}": latency.value,
        f"published_{spec.latency}": published_latency,
        f"ours_idle_{spec.suite}_pct": material.mean(cell, f"idle_{spec.suite}_pct"),
        "ours_running_limit": _whole(limit.value),
        "published_running_limit": _whole(published_limit),
        "verdict": verdict,
        "reason": reason,
    }
    text: dict[str, object] = {
        "row": cell.row,
        "published_over": times(published_over),
        "ours_over": ratio_text(over),
        "published_step": times(published_step),
        "ours_step": times(step.value),
        "published": published,
        "ours": with_interval(ours),
        "published_latency": published_latency,
        "ours_latency": with_interval(latency),
        "idle": material.mean(cell, f"idle_{spec.suite}_pct"),
        "limits": f"{show(_whole(published_limit))} / {show(_whole(limit.value))}",
        "verdict": verdict,
        "reason": reason,
    }
    return number, text


def ratio_text(estimate: Estimate) -> str:
    """`4.32x [4.30, 4.35]`; without an interval the ratio alone."""
    interval = f" [{estimate.low:.2f}, {estimate.high:.2f}]" if estimate.has_interval else ""
    return times(estimate.value) + interval


def _whole(value: float) -> int | float:
    return value if math.isnan(value) else round(value)


def _reason(reason: str, failed: int) -> str:
    return f"{reason}; {failed} failed or invalid" if failed else reason
