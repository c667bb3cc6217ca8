"""All figures in their order."""

from reports.figures import tile_loop
from reports.figures.figure import FigureSpec

FIGURES: tuple[FigureSpec, ...] = (tile_loop.SPEC,)
