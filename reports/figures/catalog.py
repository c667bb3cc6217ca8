"""All figures in the order of their numbers."""

from reports.figures import cycle, decode, integrated, packet, prefill, prefix_sharing, tile_loop, topology
from reports.figures.figure import FigureSpec

FIGURES: tuple[FigureSpec, ...] = (
    topology.SPEC,
    prefix_sharing.SPEC,
    cycle.SPEC,
    tile_loop.SPEC,
    decode.SPEC,
    packet.SPEC,
    prefill.SPEC,
    integrated.SPEC,
)
