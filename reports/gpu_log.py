"""GPU samples of one session: clocks and power over the whole session. A session without a GPU has none."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    """Over all samples of all GPUs: least, median and greatest SM clock in MHz, median power in W, throttle reasons."""

    sm_clock_mhz: tuple[float, float, float] | None
    power_w: float | None
    reasons: tuple[str, ...]
    num_samples: int


def gpu_view(folder: Path) -> GpuView | None:
    """None where the session has no `gpu.jsonl` with samples."""
    file = folder / "gpu.jsonl"
    if not file.exists():
        return None
    samples = []
    for text in file.read_text(errors="replace").splitlines():
        try:
            samples.append(json.loads(text))
        except ValueError:
            continue
    if not samples:
        return None
    clocks = [float(one["sm_clock_mhz"]) for one in samples if one.get("sm_clock_mhz") is not None]
    powers = [float(one["power_w"]) for one in samples if one.get("power_w") is not None]
    return GpuView(
        sm_clock_mhz=(min(clocks), median(clocks), max(clocks)) if clocks else None,
        power_w=median(powers) if powers else None,
        reasons=tuple(sorted({reason for one in samples for reason in one.get("reasons") or ()})),
        num_samples=len(samples),
    )
