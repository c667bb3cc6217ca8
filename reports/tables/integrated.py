"""Three prefill instances feeding one decode instance: throughput, and mean, P95 and P99 latency as published."""

import math
from collections.abc import Iterable

import pandas as pd

from reports.claims import Cell
from reports.claims.claim import published_h200
from reports.material import SHARED_PREFIX, WORKLOADS, Material
from reports.tables.table import ABSENT, Table, show, times, with_interval

LATENCIES = {
    "ttft_mean_s": "TTFT mean, s",
    "ttft_p95_s": "TTFT P95, s",
    "ttft_p99_s": "TTFT P99, s",
    "tpot_mean_ms": "TPOT mean, ms",
    "tpot_p95_ms": "TPOT P95, ms",
    "tpot_p99_ms": "TPOT P99, ms",
}


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
            text: dict[str, object] = {"shared": SHARED_PREFIX[workload], "row": row}
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
        headers={"shared": "shared prefix", "row": "row", **LATENCIES},
    )


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
