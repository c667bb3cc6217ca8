"""What the report says of clocks is of the measured passes, of each GPU by itself."""

import json
from pathlib import Path

from reports.gpu_log import gpu_views

CLIENT = {"passes": [{"t0_monotonic_s": 5.0, "t0_unix_s": 1_700_000_100.0, "duration_s": 10.0}]}


def _sample(gpu: int, after_s: float, clock: int, *reasons: str) -> dict[str, object]:
    at = {"gpu": gpu, "t_unix_s": 1_700_000_100.0 + after_s}
    return {**at, "sm_clock_mhz": clock, "power_w": clock / 2, "reasons": list(reasons)}


def test_only_samples_inside_the_passes_count_and_each_gpu_by_itself(tmp_path: Path) -> None:
    cap = "sw_power_cap"
    samples = [_sample(0, -1, 345), _sample(0, 1, 1980), _sample(0, 2, 1700, cap), _sample(0, 3, 1600, cap)]
    samples += [_sample(0, 11, 345, "gpu_idle"), _sample(1, 2, 1980), _sample(1, 4, 1980)]
    lines = [json.dumps(one) for one in samples] + ['{"gpu": 0, "t_uni', "[]"]
    (tmp_path / "gpu.jsonl").write_text("\n".join(lines))
    first, second = gpu_views(tmp_path, CLIENT)
    assert (first.gpu, first.sm_clock_mhz, first.power_w, first.num_samples) == (0, (1600, 1700, 1980), 850, 3)
    assert first.held_back == {"sw_power_cap": 2 / 3} and second.held_back == {} and second.gpu == 1


def test_a_session_without_a_gpu_has_no_view(tmp_path: Path) -> None:
    assert gpu_views(tmp_path, CLIENT) == []
    (tmp_path / "gpu.jsonl").write_text(json.dumps(_sample(0, -5, 345)))
    assert gpu_views(tmp_path, CLIENT) == []
