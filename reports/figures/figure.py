"""What a figure is, the look that all share, and its two file forms.

Colours are those of Okabe and Ito; published bars are hatched, so that print and colour-blind readers tell them apart.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.material import Material

OURS, PUBLISHED, WARM, SAND, GREEN, PINK, INK = (
    "#0072B2", "#B8C4CE", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#222222",
)  # fmt: skip
HATCH = "///"
PUBLISHED_BAR: dict[str, Any] = {"color": PUBLISHED, "hatch": HATCH, "edgecolor": "#5a6672", "linewidth": 0.6}
OURS_BAR: dict[str, Any] = {"color": OURS, "edgecolor": "#083d5c", "linewidth": 0.6}

_LOOK = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#555555",
    "axes.grid": False,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.12,  # a saved text can be a little wider than the one that was laid out
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSpec:
    """`draw` gives a drawing, or one sentence that says why there is none."""

    name: str
    title: str
    caption: str
    draw: Callable[[Material], Figure | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A figure in both file forms; without a drawing `absent` says why."""

    spec: FigureSpec
    svg: str = ""
    png: bytes = b""
    absent: str = ""


def draw(spec: FigureSpec, material: Material) -> Drawn:
    """Draw one figure."""
    with matplotlib.rc_context({**_LOOK, "svg.hashsalt": spec.name}):
        drawing = spec.draw(material)
        if isinstance(drawing, str):
            return Drawn(spec=spec, absent=drawing)
        drawing.draw_without_rendering()
        drawing.set_layout_engine("none")  # laid out once, saved twice
        svg, png = io.StringIO(), io.BytesIO()
        drawing.savefig(svg, format="svg", metadata={"Date": None, "Creator": "np1d"})
        drawing.savefig(png, format="png", dpi=150, metadata={"Software": "np1d"})
    return Drawn(spec=spec, svg=_inline(svg.getvalue(), spec.name), png=png.getvalue())


def canvas(width: float, height: float) -> Figure:
    """An empty figure, in inches, outside pyplot's registry."""
    return Figure(figsize=(width, height), layout="constrained")


def room_for_labels(axes: Axes, most: float, *, share: float = 0.35) -> None:
    """Leave space right of the longest bar for its label."""
    axes.set_xlim(0, most * (1 + share) if most > 0 else 1)


def beside(axes: Axes, x: float, y: float, text: str, *, soft: bool = False) -> None:
    """A label right of a bar's end; `soft` for words in place of a bar."""
    look: dict[str, Any] = {"fontsize": 8, "color": "#57606a"} if soft else {"fontsize": 8.5}
    axes.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", **look)


def _inline(svg: str, prefix: str) -> str:
    """The `<svg>` element alone, with ids of its own: several figures share one page."""
    element = svg[svg.index("<svg") :]
    element = re.sub(r'\bid="', f'id="{prefix}-', element)
    element = re.sub(r"url\(#", f"url(#{prefix}-", element)
    element = re.sub(r'href="#', f'href="#{prefix}-', element)
    head, rest = element.split(">", 1)
    return re.sub(r' (width|height)="[^"]*"', "", head) + ">" + rest
