"""Decode throughput and time per output token along the ladder."""

from matplotlib.figure import Figure

from reports.figures.figure import FigureSpec
from reports.figures.ladder_bars import draw_ladder
from reports.material import Material
from reports.tables.ladder import DECODE


def _draw(material: Material) -> Figure | str:
    return draw_ladder(material, DECODE)


SPEC = FigureSpec(
    name="decode",
    title="Decode throughput and TPOT",
    caption="Hatched: published (4 x H200, 64K prompts of which 99.9 % are shared, 1K output). Full: ours, geometric"
    " mean of n sessions, whiskers their 95 % interval where n > 1. In brackets the ratio to the baseline. "
    "The two have axes of their own, because they may be of different scale.",
    draw=_draw,
)
