"""One speculative cycle in its phases: a chain of drafted tokens against one drafted block."""

from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.claims import Cell
from reports.claims.claim import published_h200
from reports.engine_log import in_windows, verify_cycle
from reports.figures.figure import GREEN, OURS, PINK, SAND, FigureSpec, beside, canvas
from reports.material import Material

_PHASES = {"draft": SAND, "verify": OURS, "accept": GREEN, "commit": PINK, "other": "#c3c9cf"}
_HATCHES = {"draft": "---", "verify": "", "accept": "xxx", "commit": "\\\\\\", "other": "///"}
_CANDIDATES = {
    "MTP": (("drafters", "mtp718"), ("decode", "fp8_kv_mtp516"), ("decode", "plus_kv_only_decode_radix")),
    "DFlash2": (("drafters", "dflash2_block8"), ("decode", "dflash2_tuned_moe_dsa_partial")),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A cycle's phases in milliseconds, in order, and what stands beside it."""

    name: str
    phases_ms: dict[str, float]
    note: str


def published_bars() -> list[Bar]:
    """The published drafter table; what is neither draft nor verify is `other` there."""
    bars = []
    for row in published_h200()["speculation"]["rows"]:
        other = row["full_cycle_ms"] - row["draft_ms"] - row["verify_ms"]
        phases = {"draft": row["draft_ms"], "verify": row["verify_ms"], "other": other}
        bars.append(Bar(row["id"], phases, f"{row['full_cycle_ms']:.2f} ms for {row['accept_len']:.2f} tokens"))
    return bars


def our_bars(material: Material) -> list[Bar]:
    """For each drafter the first row that has a valid session with phases; medians of its latest session."""
    bars = []
    for drafter, candidates in _CANDIDATES.items():
        for suite, row in candidates:
            if bar := _ours(material, Cell(suite, row, "sp99_9"), drafter):
                bars.append(bar)
                break
    return bars


def _ours(material: Material, cell: Cell, drafter: str) -> Bar | None:
    for session in reversed(material.results.valid(cell)):
        cycle = verify_cycle(in_windows(session.steps(), session.client))
        if cycle is None:
            continue
        accepted = session.metrics.get("accept_length")
        tokens = f" for {accepted:.2f} tokens" if accepted else ""
        note = f"{cycle.cycle_ms:.1f} ms{tokens}, {cycle.num_steps} steps"
        return Bar(f"{drafter}: {cell.suite}/\n{cell.row}", {**cycle.phases_ms, "other": cycle.other_ms}, note)
    return None


def _draw(material: Material) -> Figure | str:
    groups = [("published", published_bars())]
    if ours := our_bars(material):
        groups.append((f"ours ({material.results.testbed}), medians of one session", ours))
    figure = canvas(11, 1.1 + 1.55 * len(groups))
    panels = figure.subplots(len(groups), 1, squeeze=False)[:, 0]
    for axes, (title, bars) in zip(panels, groups, strict=True):
        _stack(axes, bars)
        axes.set(title=title, xlabel="milliseconds from the start of a cycle")
    known = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    shown = [phase for phase in _PHASES if phase in known]
    figure.legend([known[phase] for phase in shown], shown, loc="outside lower center", ncols=5)
    if len(groups) == 1:
        panels[0].set_title("published; no valid session of ours has verify steps in its log")
    return figure


def _stack(axes: Axes, bars: list[Bar]) -> None:
    longest = max(sum(bar.phases_ms.values()) for bar in bars)
    for line, bar in enumerate(bars):
        start = 0.0
        for phase, length in bar.phases_ms.items():
            style: dict[str, Any] = {
                "color": _PHASES[phase],
                "hatch": _HATCHES[phase],
                "edgecolor": "white",
                "linewidth": 0.5,
            }
            axes.barh(line, length, left=start, height=0.56, label=phase, **style)
            if phase == "draft" and length <= 0.05 * longest:
                axes.text(start, line - 0.32, f"{length:.1f}", ha="left", va="bottom", fontsize=8.5)
            if length > 0.05 * longest:
                axes.text(start + length / 2, line, f"{length:.1f}", ha="center", va="center", fontsize=8.5,
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85})  # fmt: skip
            start += length
        beside(axes, start, line, bar.note)
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, longest * 1.38)
    axes.tick_params(axis="y", length=0)


SPEC = FigureSpec(
    name="cycle",
    title="One cycle of MTP and of DFlash2",
    caption="From one verify step to the next. Published: draft and verify as printed, the rest of the full cycle as"
    " other (for MTP it holds the draft-extend pass, for DFlash2 the projection into draft KV; commits and "
    "gaps in both). Ours: medians of the phases that the engine marks inside the measured windows; other is "
    "the median step-to-step time without them, so that work of a neighbour on the same machine shows up "
    "there.",
    draw=_draw,
)
