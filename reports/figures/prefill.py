"""Prefill throughput and time to first token along the ladder."""

from matplotlib.figure import Figure

from reports.figures.figure import FigureSpec
from reports.figures.ladder_bars import draw_ladder
from reports.material import Material
from reports.tables.ladder import PREFILL


def _draw(material: Material) -> Figure | str:
    return draw_ladder(material, PREFILL)


SPEC = FigureSpec(
    name="prefill",
    title="Prefill throughput and TTFT",
    caption="Hatched: published (4 x H200, 64K prompts, nothing shared, concurrency 2; TTFT is printed for two rows "
    "only). Full: ours, geometric mean of n sessions, whiskers their 95 % interval where n > 1. In brackets "
    "the ratio to the baseline.",
    draw=_draw,
)
