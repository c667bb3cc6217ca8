"""What the gate's proof plants really makes a step longer, and is found in the source as it is now."""

import argparse
import time
import types
from pathlib import Path

import pytest

from tools.gate_proof import ROOT, STREAM, Step, page, planted


def stream(share: float) -> types.ModuleType:
    module = types.ModuleType("planted")
    exec(compile(planted((ROOT / STREAM).read_text(), share), STREAM, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize(("share", "least"), [(0.0, 0.1), (2.0, 0.3)])
def test_a_step_lasts_longer_by_the_planted_share(share: float, least: float) -> None:
    made = stream(share).ThreadStream()
    work = made.submit(lambda inputs_read: time.sleep(0.1))
    work.done.wait()
    made.close()
    assert work.elapsed_s() >= least


def test_a_source_that_has_changed_is_no_silent_success() -> None:
    with pytest.raises(ValueError, match="mend STEP"):
        planted("nothing of the kind", 0.1)


def test_the_page_has_every_verdict_and_keeps_what_stands_beside_the_record(tmp_path: Path) -> None:
    out = tmp_path / "gate.md"
    out.write_text("# The gate\n\nan earlier record\n\n## How a gate measures\n\nin pairs\n")
    options = argparse.Namespace(out=out, times=1, loss=0.1, row="decode/baseline")
    cell = {"ratio": 0.9, "interval": [0.87, 0.93], "ratios": [0.89, 0.91]}
    gates = [Step(name, code, "", 5.0, (0.1, 1.5), (cell,)) for name, code in (("slow", 1), ("same", 4))]
    calibrated = Step(
        "calibrate", 0, "one pair\ncell: 2 % between pairs; 5 pairs uphold a threshold of 4 %\n", 9.0, (0.1, 1.0)
    )
    text = page(calibrated, Step("refused", 2, "error: no", 0.0, (0.1, 0.1)), gates, options)
    assert "**1 of 2 verdicts as expected.**" in text and "19 minutes" in text
    assert "| every step sleeps | FAIL | FAIL | 0.900 | 0.870 to 0.930 | 0.890, 0.910 |" in text
    assert "| nothing planted | INCONCLUSIVE | PASS |" in text and "uphold a threshold of 4 %" in text
    assert "an earlier record" not in text and text.endswith("\n## How a gate measures\n\nin pairs\n")
