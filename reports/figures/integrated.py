"""Three prefill instances and one decode instance under three shared prefixes, with the limits on latency."""

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.claims import Cell
from reports.estimates import Estimate
from reports.figures.figure import HATCH, WARM, FigureSpec, canvas
from reports.material import SHARED_PREFIX, WORKLOADS, Material
from reports.tables.integrated import targets
from reports.tables.table import show

_COLORS = {"baseline": "#8FA6B8", "optimized": "#0072B2"}
_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.9}
_PANELS = (
    ("output tokens/s", "output_tok_s", ""),
    ("TTFT, s", "ttft_mean_s", "ttft_p95_s"),
    ("TPOT, ms", "tpot_mean_ms", "tpot_p95_ms"),
)
_LIMITED = ("", "ttft", "tpot")


_ABOVE: dict[str, Any] = {
    "textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": 8, "bbox": _BOX, "zorder": 5,
}  # fmt: skip
_SHORT = 0.12
"""Share of a panel's height below which a bar has no room for its value."""


def _draw(material: Material) -> Figure | str:
    figure = canvas(11.5, 7.0)
    figure.get_layout_engine().set(hspace=0.07)  # type: ignore[union-attr, call-arg]
    panels = figure.subplots(2, 3)
    for column, (name, mean, high) in enumerate(_PANELS):
        for line, is_ours in enumerate((False, True)):
            axes = panels[line][column]
            who = f"ours ({material.results.testbed})" if is_ours else "published"
            axes.set(title=f"{name}, {who}", xticks=range(3), xlabel="shared prefix")
            axes.yaxis.set_major_formatter("{x:,g}")
            axes.set_xticklabels([SHARED_PREFIX[one] for one in WORKLOADS["integrated"]])
            _bars(axes, material, mean, high, is_ours)
            if _LIMITED[column]:
                _limit(axes, targets()[column - 1], "s" if column == 1 else "ms")
    handles, labels = panels[0][1].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=5)
    return figure


def _bars(axes: Axes, material: Material, mean: str, high: str, is_ours: bool) -> None:
    places = [
        (place + (side - 0.5) * 0.4, row, Cell("integrated", row, workload))
        for place, workload in enumerate(WORKLOADS["integrated"])
        for side, row in enumerate(_COLORS)
    ]
    values = [[_value(material, cell, metric, is_ours) for metric in (mean, high)] for _, _, cell in places]
    seen = [x for value, tail in values for x in (value.value, value.high, tail.value) if not math.isnan(x)]
    top = max([0.0, *seen]) * 1.22 or 1
    for (x, row, cell), (value, tail) in zip(places, values, strict=True):
        has_tail, has_mean = not math.isnan(tail.value), not math.isnan(value.value)
        note = f"{show(value.value)}\nn={value.sessions}" if is_ours else show(value.value)
        if has_mean:
            _bar(axes, x, value, row, is_ours)
        if has_mean and not has_tail:
            axes.annotate(note, (x, value.high if value.has_interval else value.value), (0, 2), **_ABOVE)
        is_short = value.value < _SHORT * top
        if has_mean and has_tail and not is_short:
            axes.text(x, 0.5 * value.value, note, ha="center", va="center", fontsize=8, bbox=_BOX)
        if has_tail:
            _tail(axes, x, tail.value, row, f"\nmean\n{note}" if has_mean and is_short else "")
        if not has_mean and not has_tail:
            word = material.results.absence(cell)[0] if is_ours else "not printed"
            look: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 8, "color": "#57606a", "bbox": _BOX}
            axes.text(x, 0, f" {word}", rotation=90, zorder=4, **look)
    axes.set_ylim(0, top)
    axes.set_xlim(-0.55, 2.55)


def _bar(axes: Axes, x: float, value: Estimate, row: str, is_ours: bool) -> None:
    spread = [[value.value - value.low], [value.high - value.value]] if value.has_interval else None
    style: dict[str, Any] = {
        "color": _COLORS[row],
        "edgecolor": "#3a4650",
        "linewidth": 0.6,
        "hatch": None if is_ours else HATCH,
    }
    axes.bar(x, value.value, width=0.37, yerr=spread, capsize=3, label=f"{row}, mean", **style)


def _tail(axes: Axes, x: float, value: float, row: str, more: str) -> None:
    """A percentile above its bar, with the mean too where the bar has no room for it."""
    mark: dict[str, Any] = {"marker": "D", "markersize": 6, "linestyle": "none", "markeredgecolor": "#222222"}
    axes.plot(x, value, color=_COLORS[row], label=f"{row}, P95", **mark)
    axes.annotate(f"{show(value)}{more}", (x, value), (0, 6), **_ABOVE)


def _limit(axes: Axes, limit: float, unit: str) -> None:
    """The dashed limit; where all bars lie far from it, the panel still shows it."""
    axes.axhline(limit, color=WARM, linestyle="--", linewidth=1.2, label="published limit on the mean")
    axes.text(2.58, limit, f"{limit:g} {unit}", ha="left", va="center", fontsize=8.5, color=WARM)
    axes.set_ylim(0, max(axes.get_ylim()[1], limit * 1.15))


def _value(material: Material, cell: Cell, metric: str, is_ours: bool) -> Estimate:
    nothing = Estimate(math.nan, math.nan, math.nan, 0)
    if not metric:
        return nothing
    if is_ours:
        return material.ours(cell, metric)
    return Estimate(material.published(cell, metric), math.nan, math.nan, 0)


SPEC = FigureSpec(
    name="integrated",
    title="3P1D throughput and latency with the limits",
    caption="Above: published (hatched), where mean TPOT and some means stand in a figure only; a baseline's "
    "throughput is not printed. Below: ours, geometric mean of n sessions, whiskers their 95 % interval "
    "where n > 1. Diamonds are P95, which needs 200 requests. Dashed: mean TTFT below 6 s and TPOT below 25 "
    "ms. At another scale the limits are shown for orientation only.",
    draw=_draw,
)
