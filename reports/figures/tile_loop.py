"""How many times the attention kernel loops over the selected keys, by tile: 66 with 32 columns, 17 with 128."""

from matplotlib.figure import Figure

from reports.claims.claim import published_h200
from reports.figures.figure import HATCH, OURS, PUBLISHED, SAND, FigureSpec, canvas
from reports.material import Material


def _draw(material: Material) -> Figure | str:
    computed = {held.claim.id: held.verdict.value for held in material.held if held.claim.kind == "computed"}
    width = int(computed["computed/tile/width"] or 0)
    figure = canvas(10, 2.9)
    axes = figure.subplots()
    for line, name in enumerate(("old", "new")):
        tile = int(published_h200()["dsa_partial"]["tile"][name])
        count = int(computed[f"computed/tile/{name}"] or 0)
        starts = [(i * tile, tile) for i in range(count)]
        axes.broken_barh(
            starts, (line - 0.28, 0.56), facecolor=(PUBLISHED, OURS)[line], edgecolor="white", linewidth=0.7
        )
        virtual = count * tile
        if virtual > width:
            axes.broken_barh(
                [(width, virtual - width)], (line - 0.28, 0.56), facecolor=SAND, hatch=HATCH, edgecolor="white"
            )
            note = f"{virtual - width} columns of padding"
            axes.text(width - 8, line + 0.36, note, ha="right", va="top", fontsize=8.5)
        axes.text(width + 90, line, f"{count} iterations", va="center", fontweight="bold")
    axes.axvline(width, color="#222222", linestyle=":", linewidth=1)
    axes.text(width - 8, 0.5, f"index width {width:,}", ha="right", va="center", fontsize=8.5)
    axes.set(xlim=(0, width + 420), ylim=(1.65, -0.6), xlabel="selected keys of one query row (columns)")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_yticks([0, 1], ["tile of 32", "tile of 128"])
    return figure


SPEC = FigureSpec(
    name="tile_loop",
    title="Iterations of the sparse-attention tile loop",
    caption="Computed from the published geometry: 2,048 selected keys and a tail of up to 3, rounded up to whole "
    "groups of 64. A larger tile loops less often and pays with a little padding. It needs no run.",
    draw=_draw,
)
