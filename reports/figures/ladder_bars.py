"""A ladder as bars: throughput and latency, published beside ours, one line a row. Knows nothing of which ladder."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.claims import Cell
from reports.estimates import Estimate
from reports.figures.figure import OURS_BAR, PUBLISHED_BAR, beside, canvas, room_for_labels
from reports.material import Material
from reports.tables.ladder import LadderSpec, ladder_rows
from reports.tables.table import show


def draw_ladder(material: Material, spec: LadderSpec) -> Figure | str:
    """Four panels over the same rows; a row without a value says so in its place, and below why it cannot have one."""
    rows = ladder_rows(material, spec)
    cells = [Cell(spec.suite, row, spec.workload) for row in rows]
    absences = [_absence(material, cell) for cell in cells]
    notes = [f"{row}: {why}" for row, (_, why) in zip(rows, absences, strict=True) if why]
    figure = canvas(12.5, 1.5 + 0.44 * len(rows) + 0.17 * len(notes))
    panels = figure.subplots(1, 4, sharey=True, width_ratios=(1.25, 1.25, 1, 1))
    unit = "input tokens/s" if spec.metric == "input_tok_s" else "output tokens/s"
    _published(panels[0], [material.published(cell, spec.metric) for cell in cells], with_ratio=True)
    _ours(panels[1], [material.ours(cell, spec.metric) for cell in cells], absences, with_ratio=True)
    _published(panels[2], [material.published(cell, spec.latency) for cell in cells], with_ratio=False)
    _ours(panels[3], [material.ours(cell, spec.latency) for cell in cells], absences, with_ratio=False)
    titles = ("published", f"ours ({material.results.testbed})", "published", f"ours ({material.results.testbed})")
    for panel, title, name in zip(panels, titles, (unit, unit, spec.latency_name, spec.latency_name), strict=True):
        panel.set(title=title, xlabel=name)
        panel.tick_params(axis="y", length=0)
        panel.locator_params(axis="x", nbins=4)
        panel.xaxis.set_major_formatter("{x:,g}")
    panels[0].set_yticks(range(len(rows)), rows)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    if notes:
        figure.supxlabel("\n".join(notes), x=0.01, ha="left", fontsize=8, color="#57606a", linespacing=1.4)
    return figure


def _absence(material: Material, cell: Cell) -> tuple[str, str]:
    """The word in place of a bar, and why the row can have none here (empty where it could)."""
    word, why = material.results.absence(cell)
    return word, why if word in ("not applicable", "not built") and not material.results.of(cell) else ""


def _published(axes: Axes, values: Sequence[float], *, with_ratio: bool) -> None:
    first = values[0]
    for line, value in enumerate(values):
        if math.isnan(value):
            beside(axes, 0, line, "not printed", soft=True)
            continue
        axes.barh(line, value, height=0.62, **PUBLISHED_BAR)
        beside(axes, value, line, f"{show(value)}{_ratio(value, first, with_ratio)}")
    room_for_labels(axes, max((value for value in values if not math.isnan(value)), default=0), share=0.62)


def _ours(axes: Axes, values: Sequence[Estimate], absences: Sequence[tuple[str, str]], *, with_ratio: bool) -> None:
    first = values[0].value
    for line, one in enumerate(values):
        if not one.sessions:
            beside(axes, 0, line, absences[line][0], soft=True)
            continue
        spread = [[one.value - one.low], [one.high - one.value]] if one.has_interval else None
        axes.barh(line, one.value, height=0.62, xerr=spread, capsize=3, **OURS_BAR)
        end = one.high if one.has_interval else one.value
        label = f"{show(one.value)}{_ratio(one.value, first, with_ratio)}"
        beside(axes, end, line, f"{label} n={one.sessions}")
    ends = [one.high if one.has_interval else one.value for one in values if one.sessions]
    room_for_labels(axes, max(ends, default=0), share=0.85 if with_ratio else 0.7)


def _ratio(value: float, first: float, with_ratio: bool) -> str:
    return f" ({value / first:.2f}x)" if with_ratio and not math.isnan(first) else ""
