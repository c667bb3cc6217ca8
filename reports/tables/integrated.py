"""Three prefill instances feeding one decode instance: throughput, and mean, P95 and P99 latency as published."""

import math
from collections.abc import Iterable

import pandas as pd

from reports.claims import Cell
from reports.claims.claim import published_h200
from reports.material import SHARED_PREFIX, WORKLOADS, Material
from reports.plans import topology
from reports.tables.balance import balance_rows
from reports.tables.table import ABSENT, Table, show, times, with_interval

LATENCIES = {
    "ttft_mean_s": "TTFT mean, s",
    "ttft_p95_s": "TTFT P95, s",
    "ttft_p99_s": "TTFT P99, s",
    "tpot_mean_ms": "TPOT mean, ms",
    "tpot_p95_ms": "TPOT P95, ms",
    "tpot_p99_ms": "TPOT P99, ms",
}

MOST_HANDOFF_MS = 20
LEAST_SHARE_PCT = 95
PAGES_BAND_PCT = 3
_HALVES = (
    "running_p50", "handoff_p50_ms", "handoff_p95_ms", "idle_prefill_pct", "idle_decode_pct", "pages_of_formula_pct",
)  # fmt: skip


def throughput(material: Material) -> Table:
    """Output tokens a second of every row, and its ratio to the baseline under the same workload."""
    rows = [
        _throughput_row(material, Cell("integrated", row, workload))
        for workload in WORKLOADS["integrated"]
        for row in material.rows("integrated", workload)
    ]
    return Table(
        name="integrated_throughput",
        title="3P1D throughput",
        caption="Output tokens a second from end to end. The report prints rounded values for the optimized side and "
        "speed-ups; a baseline's own throughput is not printed. Both published sides were driven at different loads.",
        frame=pd.DataFrame([number for number, _ in rows]),
        shown=pd.DataFrame([text for _, text in rows]),
        headers={
            "shared": "shared prefix",
            "row": "row",
            "ran": "ours ran as",
            "published_over": "published / baseline",
            "ours_over": "ours / baseline",
            "published": "published, output tok/s",
            "ours": "ours, output tok/s",
            "verdict": "verdict",
            "reason": "why",
        },
    )


def latencies(material: Material) -> Table:
    """Mean, P95 and P99 of time to first token and per output token, published / ours."""
    numbers, texts = [], []
    for workload in WORKLOADS["integrated"]:
        for row in material.rows("integrated", workload):
            cell = Cell("integrated", row, workload)
            number: dict[str, object] = {"shared_prefix": SHARED_PREFIX[workload], "row": row}
            text: dict[str, object] = {"shared": SHARED_PREFIX[workload], "row": row, "ran": ran_as(material, cell)}
            for metric in LATENCIES:
                published, ours = material.published(cell, metric), material.ours(cell, metric)
                number |= {f"published_{metric}": published, f"ours_{metric}": ours.value, f"n_{metric}": ours.sessions}
                text[metric] = f"{show(published)} / {show(ours.value)}"
            numbers.append(number)
            texts.append(text)
    return Table(
        name="integrated_latency",
        title="3P1D latency: mean, P95, P99",
        caption="Each cell reads published / ours. A percentile needs 10 requests beyond it (P95: 200 requests, P99: "
        "1,000), so short runs show a dash. Dashes on the published side are values that only a figure shows.",
        frame=pd.DataFrame(numbers),
        shown=pd.DataFrame(texts),
        headers={"shared": "shared prefix", "row": "row", "ran": "ours ran as", **LATENCIES},
    )


def halves(material: Material) -> Table:
    """What no client sees: the hand-off, idle devices of both halves, and pages against the formula."""
    rows = []
    for workload in WORKLOADS["integrated"]:
        for row in material.rows("integrated", workload):
            cell = Cell("integrated", row, workload)
            for session in material.results.valid(cell)[-1:]:
                rows.append(
                    {
                        "shared": SHARED_PREFIX[workload],
                        "row": row,
                        "ran": ran_as(material, cell),
                        "in_flight": session.plan.get("conditions", {}).get("scaled", {}).get("concurrency"),
                    }
                    | {metric: material.mean(cell, metric) for metric in _HALVES}
                )
    return Table(
        name="integrated_halves",
        title="Between the halves",
        caption="Hand-off: from prefill's last chunk to decode having the request; the decode instance takes arrivals "
        "in between two steps, so waiting for a step's end is part of it. Running: median over decode "
        "steps. Idle: share of the windows' middle three fifths in which a half's devices ran no step. Pages over "
        "Lp + N x Ls: mean pages in use on the decode instance over shared whole pages once and N times the rest.",
        frame=pd.DataFrame(rows),
        headers={
            "shared": "shared prefix",
            "row": "row",
            "ran": "ours ran as",
            "in_flight": "in flight",
            "running_p50": "running",
            "handoff_p50_ms": "hand-off p50, ms",
            "handoff_p95_ms": "hand-off p95, ms",
            "idle_prefill_pct": "prefill idle, %",
            "idle_decode_pct": "decode idle, %",
            "pages_of_formula_pct": "pages over Lp + N x Ls, %",
        }
        if rows
        else {},
        empty="No integrated row has a valid session.",
    )


def checks(material: Material) -> Table:
    """Limits that every integrated session is held against, whatever its testbed: value, limit, whether it holds."""
    lesser = {
        (row["shared"], row["row"]): row["share_pct"] for row in balance_rows(material) if row["source"] == "ours"
    }
    rows: list[dict[str, object]] = []
    for workload in WORKLOADS["integrated"]:
        for row in material.rows("integrated", workload):
            cell = Cell("integrated", row, workload)
            if not material.results.valid(cell):
                continue
            failed = material.results.values(cell, "num_failed")
            share = lesser.get((SHARED_PREFIX[workload], row), math.nan)
            pages = material.mean(cell, "pages_of_formula_pct")
            handoff = material.mean(cell, "handoff_p95_ms")
            found = (
                ("failed requests", max(failed, default=math.nan), "0", lambda value: value == 0),
                ("hand-off p95, ms", handoff, f"at most {MOST_HANDOFF_MS}", lambda value: value <= MOST_HANDOFF_MS),
                ("output of the lesser half, %", share, f"at least {LEAST_SHARE_PCT}",
                 lambda value: value >= LEAST_SHARE_PCT),
                ("pages over Lp + N x Ls, %", pages, f"100 ± {PAGES_BAND_PCT}",
                 lambda value: abs(value - 100) <= PAGES_BAND_PCT),
            )  # fmt: skip
            rows += [
                {"shared": SHARED_PREFIX[workload], "row": row, "check": name, "value": value, "limit": limit,
                 "holds": "not known" if math.isnan(value) else "yes" if is_met(value) else "no"}
                for name, value, limit, is_met in found
            ]  # fmt: skip
    return Table(
        name="integrated_checks",
        title="What should hold between the halves",
        caption="Our own limits; the report prints none of them. Output of the lesser half: output together over the "
        "lesser of prefill's supply and decode's capacity, from rows that measure each half alone; `not known` where "
        "one of them has no valid session with the same model, or too few requests stand behind a percentile.",
        frame=pd.DataFrame(rows),
        headers={
            "shared": "shared prefix",
            "row": "row",
            "check": "check",
            "value": "ours",
            "limit": "limit",
            "holds": "holds",
        }
        if rows
        else {},
        empty="No integrated row has a valid session.",
    )


def ran_as(material: Material, cell: Cell) -> str:
    """Topology and model of our latest valid session, in words; a dash without one."""
    sessions = material.results.valid(cell)
    if not sessions:
        return ABSENT
    plan = sessions[-1].plan
    return f"{topology(plan)}, {plan.get('model', {}).get('name', 'unknown')} model"


def worsened(material: Material) -> Table:
    """Every latency that is higher with everything on than in the baseline, as published or as we measured it."""
    rows = []
    for workload in WORKLOADS["integrated"]:
        base, best = (Cell("integrated", row, workload) for row in ("baseline", "optimized"))
        for metric, name in LATENCIES.items():
            published = material.published(base, metric), material.published(best, metric)
            ours = material.ours(base, metric).value, material.ours(best, metric).value
            if published[1] > published[0] or ours[1] > ours[0]:
                rows.append(
                    {
                        "shared_prefix": SHARED_PREFIX[workload],
                        "metric": name,
                        "published_baseline": published[0],
                        "published_optimized": published[1],
                        "ours_baseline": ours[0],
                        "ours_optimized": ours[1],
                    }
                )
    frame = pd.DataFrame(rows)
    shown = frame.assign(
        published=_arrows(frame["published_baseline"], frame["published_optimized"]),
        ours=_arrows(frame["ours_baseline"], frame["ours_optimized"]),
    )
    return Table(
        name="worsened",
        title="What gets worse when optimized",
        caption="Latencies that are higher with everything on, as published or here, baseline → optimized. The report "
        "drove its two sides at different client loads; more requests at once also means that a first token waits "
        "longer for its turn.",
        frame=frame,
        shown=shown,
        headers={"shared_prefix": "shared prefix", "metric": "latency", "published": "published", "ours": "ours"},
    )


def targets() -> tuple[float, float]:
    """The published limits: mean TTFT in seconds, TPOT in milliseconds."""
    limits = published_h200()["e2e_3p1d"]["targets"]
    return float(limits["ttft_mean_s_lt"]), float(limits["tpot_ms_lt"])


def _arrows(before: Iterable[float], after: Iterable[float]) -> list[str]:
    pairs = zip(before, after, strict=True)
    return [ABSENT if math.isnan(a) or math.isnan(b) else f"{show(a)} → {show(b)}" for a, b in pairs]


def _throughput_row(material: Material, cell: Cell) -> tuple[dict[str, object], dict[str, object]]:
    base = Cell("integrated", "baseline", cell.workload)
    metric = "output_tok_s"
    ours, over = material.ours(cell, metric), material.ours_over(cell, base, metric)
    ratio, absolute = material.find(cell, metric, "ratio", "baseline"), material.find(cell, metric)
    said = ratio or absolute
    measured = "baseline without a printed throughput" if cell == base else "a row of our own"
    verdict = said.verdict.outcome if said else "no published value"
    common: dict[str, object] = {
        "row": cell.row,
        "ran": ran_as(material, cell),
        "verdict": verdict,
        "reason": said.verdict.reason if said else measured,
    }
    number = common | {
        "shared_prefix": SHARED_PREFIX[cell.workload],
        "sessions": ours.sessions,
        "ours": ours.value,
        "ours_low": ours.low,
        "ours_high": ours.high,
        "ours_over_baseline": over.value,
        "published": absolute.claim.published if absolute else float("nan"),
        "published_over_baseline": ratio.claim.published if ratio else float("nan"),
    }
    text = common | {
        "shared": SHARED_PREFIX[cell.workload],
        "published_over": times(ratio.claim.published) if ratio else "–",
        "ours_over": times(over.value),
        "published": absolute.claim.published if absolute else float("nan"),
        "ours": with_interval(ours),
    }
    return number, text
