"""The bench of collectives, run over two CPU processes: results are checked, and a failing rank ends the others."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tools.gpu.micro import collectives

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch has no distributed package")


def test_two_processes_agree_on_every_collective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "rows.json"
    words = ["collectives", "--backend", "gloo", "--divide", "1000", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    assert collectives.main() == 0
    rows = json.loads(out.read_text())
    assert [row["kind"] for row in rows] == [collective.kind for collective in collectives.COLLECTIVES]
    assert all(row["right"] and row["us"] > 0 and row["ranks"] == 2 for row in rows)


def test_floors_are_those_of_the_links() -> None:
    reduce, gather, scatter = collectives.COLLECTIVES
    floors = [c.floor_us(c.values, n) for c, n in ((reduce, 2), (reduce, 4), (gather, 4), (scatter, 4))]
    assert floors == pytest.approx([19, 29, 230, 447], rel=0.02)


def test_a_rank_that_fails_ends_the_one_that_waits_for_it() -> None:
    began = time.monotonic()
    waits, fails = (
        subprocess.Popen([sys.executable, "-c", text])
        for text in ("import time; time.sleep(90)", "raise SystemExit(3)")
    )
    assert 3 in collectives.ended([waits, fails]) and time.monotonic() - began < 60
