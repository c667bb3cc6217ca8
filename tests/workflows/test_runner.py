"""The process that `np1d run` starts hears interrupts, wherever `np1d run` itself was started."""

import signal
import sys
from pathlib import Path

from workflows.runner import _run


def test_what_is_started_from_a_background_that_ignores_interrupts_hears_them(tmp_path: Path) -> None:
    hears = "import signal, sys; sys.exit(signal.getsignal(signal.SIGINT) is not signal.default_int_handler)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with (tmp_path / "lock").open("w") as lock:
            assert _run([sys.executable, "-c", hears], lock) == 0
    finally:
        signal.signal(signal.SIGINT, before)
