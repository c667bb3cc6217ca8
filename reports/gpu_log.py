"""GPU samples of one session: clocks, power and what held each GPU back while it was measured. A session without a GPU
has none."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from reports.engine_log import in_windows
from reports.json_files import json_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    """One GPU inside the measured passes: least, median and greatest SM clock in MHz, median power in W, and of each
    reason that lowered its clock the share of samples that name it."""

    gpu: int
    sm_clock_mhz: tuple[float, float, float] | None
    power_w: float | None
    held_back: Mapping[str, float]
    num_samples: int


def gpu_views(folder: Path, client: Mapping[str, Any]) -> list[GpuView]:
    """By number; empty where the session has no `gpu.jsonl` with samples inside its passes."""
    file = folder / "gpu.jsonl"
    lines = json_lines(file) if file.exists() else []
    samples = [{**one, "t_s": one["t_unix_s"]} for one in lines if {"gpu", "t_unix_s"} <= one.keys()]
    inside = in_windows(samples, client)
    return [_view(gpu, [one for one in inside if one["gpu"] == gpu]) for gpu in sorted({one["gpu"] for one in inside})]


def _view(gpu: int, samples: Sequence[Mapping[str, Any]]) -> GpuView:
    clocks = [float(one["sm_clock_mhz"]) for one in samples if one.get("sm_clock_mhz") is not None]
    powers = [float(one["power_w"]) for one in samples if one.get("power_w") is not None]
    reasons = Counter(reason for one in samples for reason in set(one.get("reasons") or ()))
    return GpuView(
        gpu=gpu,
        sm_clock_mhz=(min(clocks), median(clocks), max(clocks)) if clocks else None,
        power_w=median(powers) if powers else None,
        held_back={reason: count / len(samples) for reason, count in sorted(reasons.items())},
        num_samples=len(samples),
    )
