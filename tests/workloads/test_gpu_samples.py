"""GPU samples: what they hold, whom they call foreign, and that a machine without a GPU says so."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from workloads.gpu_samples import foreign, main, read_gpu_samples, reasons_of, record


class Recorded:
    """A GPU that throttles in its second sample."""

    def __init__(self):
        self.count = 0

    def sample(self):
        self.count += 1
        bits = 0x4 if self.count > 1 else 0x1
        yield {"gpu": 0, "sm_clock_mhz": 1980, "power_w": 690.0, "reasons": reasons_of(bits), "pids": [os.getpid(), 1]}


def test_samples_are_lines_with_time_reasons_and_foreign_processes(tmp_path):
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    path = tmp_path / "gpu.jsonl"
    count = record(Recorded(), path, [os.getpid()], stop, period_s=0.05)
    samples = read_gpu_samples(path)
    assert len(samples) == count > 2
    assert [s["reasons"] for s in samples[:2]] == [["idle"], ["sw_power_cap"]]
    assert all(s["foreign_pids"] == [1] and s["t_unix_s"] > 1e9 for s in samples)


def test_a_sample_cut_short_is_left_out(tmp_path):
    (tmp_path / "g").write_text('{"gpu": 0}\n{"gpu": 1')
    assert read_gpu_samples(tmp_path / "g") == [{"gpu": 0}]


def test_descendants_of_ours_are_not_foreign():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert foreign([child.pid, 1], [os.getpid()]) == [1]
        child.communicate(b"\n")
    assert foreign(None, [1]) is None


def test_a_machine_without_a_driver_says_so(tmp_path, capsys):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU driver")
    assert main(["--out", str(tmp_path / "g")]) == 4
    assert "no GPU samples" in capsys.readouterr().err


def test_all_harmless_reasons_have_names():
    assert reasons_of(0x1 | 0x8 | 0x40) == ["idle", "hw_slowdown", "hw_thermal"]
