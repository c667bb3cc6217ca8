"""Who talks to whom: client, router, prefill instances, decode instance; the published layout beside ours."""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from reports.claims.claim import published_h200
from reports.figures.figure import FigureSpec, canvas
from reports.material import Material
from reports.results import Session

_LOOK = {"client": "#f0f2f4", "router": "#e4e9ee", "prefill": "#cfe4f3", "decode": "#fbdfc8", "single": "#dcefe6"}


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands in each box. `prefills` and `decodes` hold one text an instance."""

    title: str
    router: str
    prefills: tuple[str, ...]
    decodes: tuple[str, ...]
    singles: tuple[str, ...] = ()
    transport: str = "NIXL"


def published_layout() -> Layout:
    """Three prefill instances and one decode instance on two hosts."""
    hardware = published_h200()["hardware"]
    each = f"{hardware['gpus_per_instance']} x {hardware['gpu'].removeprefix('NVIDIA ')}"
    return Layout(
        title=f"published: {hardware['gpus_total_3p1d']} GPUs on {hardware['nodes_3p1d']} hosts",
        router="sglang-router",
        prefills=tuple(f"prefill {i}, {each}" for i in range(hardware["prefill_instances_3p1d"])),
        decodes=(f"decode, {each}",),
    )


def our_layout(session: Session, testbed: str) -> Layout:
    """From the processes of a plan."""
    processes = session.plan.get("processes", [])

    def boxes(role: str) -> tuple[str, ...]:
        return tuple(f"{role} {one['name']}, {_device(one)}" for one in processes if one.get("role") == role)

    routers = [one for one in processes if one.get("role") == "router"]
    mini = any("mini" in str(word) for one in routers for word in one.get("command", ()))
    return Layout(
        title=f"ours ({testbed}): {session.cell.suite}/{session.cell.row}",
        router=("sglang-router, mini-lb" if mini else "sglang-router") if routers else "none",
        prefills=boxes("prefill"),
        decodes=boxes("decode"),
        singles=boxes("single"),
        transport="NIXL, " + _backend(session),
    )


def _draw(material: Material) -> Figure | str:
    layouts = [published_layout()]
    planned = [session for session in material.results.sessions if session.plan.get("processes")]
    if planned:
        most = max(planned, key=lambda session: len(session.plan["processes"]))
        layouts.append(our_layout(most, material.results.testbed))
    figure = canvas(11.5, 3.5)
    panels = figure.subplots(1, 2)
    for axes, layout in zip(panels, layouts, strict=False):
        _panel(axes, layout)
    if len(layouts) == 1:
        panels[1].axis("off")
    return figure


def _panel(axes: Axes, layout: Layout) -> None:
    axes.set(xlim=(0, 10), ylim=(0, 5.4), title=layout.title)
    axes.axis("off")
    _box(axes, (0.1, 2.5), (1.5, 1.0), "client", "client")
    _box(axes, (2.2, 2.5), (2.1, 1.0), layout.router.replace(", ", "\n"), "router")
    _arrow(axes, (1.6, 3.0), (2.2, 3.0))
    instances = layout.prefills or layout.singles
    role = "prefill" if layout.prefills else "single"
    heights = _spread(len(instances))
    for height, text in zip(heights, instances, strict=True):
        _box(axes, (4.95, height - 0.55), (2.1, 1.1), text.replace(", ", "\n"), role)
        _arrow(axes, (4.3, 3.0), (4.95, height))
    for place, text in zip(_spread(len(layout.decodes)), layout.decodes, strict=True):
        _box(axes, (7.85, place - 0.65), (2.1, 1.3), text.replace(", ", "\n"), "decode")
        for height in heights:
            _arrow(axes, (7.05, height), (7.85, place), dashed=True)
    if layout.decodes:
        axes.text(7.45, 0.05, f"cache and states: {layout.transport}", ha="center", fontsize=8.5)


def _spread(count: int) -> list[float]:
    return [3.0 + ((count - 1) / 2 - i) * 1.55 for i in range(count)]


def _box(axes: Axes, corner: tuple[float, float], size: tuple[float, float], text: str, kind: str) -> None:
    style = "round,pad=0.02,rounding_size=0.12"
    axes.add_patch(
        FancyBboxPatch(corner, *size, boxstyle=style, facecolor=_LOOK[kind], edgecolor="#444444", linewidth=0.9)
    )
    axes.text(corner[0] + size[0] / 2, corner[1] + size[1] / 2, text, ha="center", va="center", fontsize=8.5)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], *, dashed: bool = False) -> None:
    look = {"arrowstyle": "-|>", "color": "#444444", "linewidth": 1.0, "linestyle": "--" if dashed else "-"}
    axes.annotate("", xy=end, xytext=start, arrowprops={**look, "shrinkA": 1, "shrinkB": 1})


def _device(process: dict[str, object]) -> str:
    gpus = process.get("gpus")
    if isinstance(gpus, list) and gpus:
        return f"{len(gpus)} GPU" + ("s" if len(gpus) > 1 else "")
    return "CPU"


def _backend(session: Session) -> str:
    for process in session.plan.get("processes", []):
        for tree in process.get("files", {}).values():
            if isinstance(tree, dict) and "disagg" in tree:
                return str(tree["disagg"]["backend"]).upper()
    return "backend not recorded"


SPEC = FigureSpec(
    name="topology",
    title="Topology",
    caption="Requests run along full arrows through the router; pages and recurrent states travel along dashed "
    "arrows from each prefill instance to the decode instance. Ours is the largest session of these results.",
    draw=_draw,
)
