"""Pages that a decode instance uses by running requests: with and without shared prefix pages, against the formula."""

from collections import Counter

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.claims import Cell
from reports.claims.claim import published_h200
from reports.engine_log import in_windows
from reports.figures.figure import OURS, OURS_BAR, PUBLISHED_BAR, WARM, FigureSpec, beside, canvas
from reports.material import Material
from reports.page_load import PageLoad, page_load, page_points
from reports.plans import instance_config
from reports.results import Session

_ROWS = ("baseline", "fp8_kv", "plus_kv_only_decode_radix", "dflash2_tuned_moe_dsa_partial", "fp8_kv_radix")


def _draw(material: Material) -> Figure | str:
    found: dict[bool, tuple[Session, PageLoad, Counter[tuple[int, int]]]] = {}
    for row in _ROWS:
        for session in material.results.valid(Cell("decode", row, "sp99_9"))[-1:]:
            load, config = page_load(session.plan), instance_config(session.plan, "decode")
            points = page_points(in_windows(session.steps(), session.client), session.plan)
            if load and config and points:
                found.setdefault(config["cache"]["prefix"] == "kv_radix", (session, load, points))
    if not found:
        return "No valid session with a decode instance of its own has an engine log: there are no pages to count."
    figure = canvas(11.5, 4.3)
    left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
    for is_shared, (session, load, points) in sorted(found.items()):
        _scatter(left, is_shared, session, load, points)
    left.set(
        title=f"pages by requests, ours ({material.results.testbed})",
        xlabel="requests that hold memory (arriving and running)",
        ylabel="pages in use",
    )
    left.set_xlim(left=0)
    left.set_ylim(bottom=0)
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    _occupancy(right, material)
    return figure


def _scatter(axes: Axes, is_shared: bool, session: Session, load: PageLoad, points: Counter[tuple[int, int]]) -> None:
    color, marker = (OURS, "o") if is_shared else (WARM, "s")
    word = "shared prefix pages" if is_shared else "nothing shared"
    steps = sum(points.values())
    sizes = [14 + 110 * count / steps for count in points.values()]
    axes.scatter(
        [x for x, _ in points], [y for _, y in points], s=sizes, color=color, marker=marker, alpha=0.75, zorder=3,
        label=f"{word}: {session.cell.row}, {steps} steps",
    )  # fmt: skip
    counts = range(0, max(x for x, _ in points) + 2)
    low, high = ([load.pages(n, is_shared=is_shared, at_end=end) for n in counts] for end in (False, True))
    axes.fill_between(counts, low, high, color=color, alpha=0.16, linewidth=0)
    axes.plot(counts, high, color=color, linestyle="--" if is_shared else ":", linewidth=1, label=f"formula, {word}")


def _occupancy(axes: Axes, material: Material) -> None:
    base, final = published_h200()["memory_budget"]["rows"]
    cells = [Cell("decode", row, "sp99_9") for row in ("baseline", "dflash2_tuned_moe_dsa_partial")]
    for line, (row, cell) in enumerate(zip((base, final), cells, strict=True)):
        value = row["median_kv_occupancy_pct"]
        axes.barh(line - 0.2, value, height=0.36, label=None if line else "published", **PUBLISHED_BAR)
        beside(axes, value, line - 0.2, f"{value} %")
        ours = material.ours(cell, "pages_used_p50_ratio")
        if ours.sessions:
            axes.barh(line + 0.2, 100 * ours.value, height=0.36, label=None if line else "ours", **OURS_BAR)
            beside(axes, 100 * ours.value, line + 0.2, f"{100 * ours.value:.1f} % n={ours.sessions}")
        else:
            beside(axes, 0, line + 0.2, "no valid session", soft=True)
    axes.set_yticks([0, 1], ["baseline", "last row"])
    axes.set(xlim=(0, 135), ylim=(1.6, -0.6), xlabel="% of the page pool, median", title="share of pages in use")
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)


SPEC = FigureSpec(
    name="prefix_sharing",
    title="Prefix sharing on the decode instance",
    caption="Left: pages in use at each decode step of one session, dots larger where more steps fell; the band is "
    "the formula from the start to the end of an answer: n x pages of a request, or shared whole pages once "
    "and n x the rest. Requests that end while others arrive may lie between bands. Right: median share of "
    "the pool in use; the published last row holds 129 requests in 7 % of its pages.",
    draw=_draw,
)
