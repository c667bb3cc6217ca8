"""What the gate's proof plants really makes a step longer, and is found in the source as it is now."""

import time
import types

import pytest

from tools.gate_proof import ROOT, STREAM, planted


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
