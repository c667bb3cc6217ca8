"""What one token costs on its way between context-parallel ranks: BF16 rows against FP8 packets."""

from matplotlib.figure import Figure

from reports.claims.arithmetic import packet_parts
from reports.claims.claim import published_h200
from reports.figures.figure import GREEN, OURS, PINK, SAND, FigureSpec, canvas
from reports.material import Material


def _draw(_material: Material) -> Figure | str:
    parts = packet_parts()
    total = sum(parts.values())
    whole = published_h200()["communication_and_fusion"]["cp_moe_allgather"]["derived"]["bf16_bytes"]
    printed = published_h200()["communication_and_fusion"]["cp_moe_allgather"]["payload_change_pct"]
    figure = canvas(10.5, 2.9)
    axes = figure.subplots()
    axes.barh(0, whole, height=0.5, color="#B8C4CE", edgecolor="#5a6672", hatch="///", label="hidden row in BF16")
    axes.text(whole + 90, 0, f"{whole:,} bytes", va="center", fontweight="bold")
    start = 0
    looks = ((OURS, ""), (SAND, "--"), (GREEN, "xxx"), (PINK, "\\\\\\"))
    for (name, size), (color, hatch) in zip(parts.items(), looks, strict=True):
        label = f"{name}, {size:,} B"
        axes.barh(
            1, size, left=start, height=0.5, color=color, hatch=hatch, edgecolor="white", linewidth=0.4, label=label
        )
        start += size
    change = 100 * (total / whole - 1)
    axes.text(
        start + 90, 1, f"{total:,} bytes, {change:.1f} % (published: about {printed} %)", va="center", fontweight="bold"
    )
    axes.set_yticks([0, 1], ["gathered as BF16", "one FP8 packet"])
    axes.set(xlim=(0, whole * 1.18), ylim=(1.5, -0.5), xlabel="bytes a token and layer, from each rank to each other")
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter("{x:,g}")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


SPEC = FigureSpec(
    name="packet",
    title="Packet of the expert exchange",
    caption="Computed from the published geometry: 4,096 channels in FP8, one FP32 scale for every 128, eight routed"
    " experts with their weights, in one packet instead of a BF16 row and separate routing data. It needs no"
    " run.",
    draw=_draw,
)
