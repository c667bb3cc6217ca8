"""A profile says what one step of each kind ran, and how much of that step's own time it explains."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from stack.engine import bench
from stack.engine.kernel_trace import Kind, Ran, covered_us, doubts, give_head_start
from stack.models.tiny import write_tiny


def ran(name: str, begin_us: float, end_us: float) -> Ran:
    return Ran(name, begin_us, end_us, end_us - begin_us)


def test_kernels_are_means_of_a_step_with_their_launches():
    kind = Kind()
    kind.add(0.004, [ran("a", 0, 1000), ran("a", 1000, 2000), ran("b", 2000, 4000)])
    kind.add(0.002, [ran("a", 0, 2000)])
    found = kind.report()
    assert found["steps"] == 2 and found["launches"] == 2
    assert found["kernels"] == {"a": {"ms": 2.0, "launches": 1.5}, "b": {"ms": 1.0, "launches": 0.5}}
    assert (found["device_ms"], found["captured_ms"], found["covered"]) == (3.0, 3.0, 1.0)
    assert doubts({"decode": found}) == []


def test_kernels_side_by_side_or_inside_another_cover_their_time_once():
    assert covered_us([ran("a", 0, 10), ran("b", 5, 12), ran("c", 6, 7), ran("d", 20, 21)]) == 13
    assert covered_us([]) == 0


def test_a_trace_that_misses_a_tenth_of_the_step_says_so():
    kind = Kind()
    kind.add(0.010, [ran("a", 0, 8900)])
    (doubt,) = doubts({"prefill": kind.report()})
    assert doubt.startswith("prefill: the trace covers 8.9 of 10.0 ms a step")
    assert "no step was traced" in doubts({})[0]


def test_only_a_gpu_gets_a_head_start():
    submitted = []
    runner = SimpleNamespace(submit=submitted.append)
    give_head_start(runner, torch.device("cpu"))
    assert submitted == []
    give_head_start(runner, torch.device("cuda"))
    assert len(submitted) == 1


@pytest.mark.slow
def test_the_bench_profiles_prefill_and_decode_apart(tmp_path, monkeypatch, capsys):
    write_tiny(tmp_path, dtype="float32")
    config = tmp_path / "engine.json"
    config.write_text(json.dumps({"model": {"path": str(tmp_path), "compute_dtype": "float32"}}))
    words = "--input 24 --output 4 --num 4 --warmup 0 --profile-steps 4 --set cache.budget_bytes=33554432"
    words += " --set cache.expected_context=128 --set scheduler.overlap=true"
    monkeypatch.setattr(sys, "argv", ["bench", str(config), *words.split()])
    assert bench.main() == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert "wall_s" not in result, "a traced window has no rates"
    kinds = result["profile"]
    assert set(kinds) == {"prefill", "decode"} and sum(found["steps"] for found in kinds.values()) == 4
    for found in kinds.values():
        assert 0.5 < found["covered"] <= 1.0, "operators run inside their step, and are most of it"
        kernels = found["kernels"].values()
        assert sum(kernel["ms"] for kernel in kernels) == pytest.approx(found["captured_ms"], rel=0.05)
        assert sum(kernel["launches"] for kernel in kernels) == pytest.approx(found["launches"])
    assert [line for line in err.splitlines() if "the trace covers" in line] == result["doubts"]
