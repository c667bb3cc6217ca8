"""What a user sees while a load runs: a bar with live throughput on a terminal, a line every few seconds elsewhere."""

import sys
import time
from typing import TextIO

_LINE_PERIOD_S = 5.0


class ProgressLine:
    """Progress of one session of `passes` passes."""

    def __init__(self, *, title: str, passes: int, per_pass: int, stream: TextIO | None = None) -> None:
        self._title = title
        self._passes = passes
        self._per_pass = per_pass
        self._stream = stream if stream is not None else sys.stderr
        self._is_terminal = self._stream.isatty()
        self._pass_index = 0
        self._last = (time.monotonic(), 0)
        self._next_line_s = 0.0

    def begin(self, pass_index: int) -> None:
        """A pass begins."""
        self._pass_index = pass_index
        self._last = (time.monotonic(), 0)
        self._next_line_s = time.monotonic() + _LINE_PERIOD_S

    def update(self, done: int, failed: int, tokens: int) -> None:
        """Counts of the running pass so far."""
        now = time.monotonic()
        if not self._is_terminal and now < self._next_line_s:
            return
        self._next_line_s = now + _LINE_PERIOD_S
        then, before = self._last
        rate = (tokens - before) / max(now - then, 1e-6)
        self._last = (now, tokens)
        self._show(self._text(done, failed, rate), end="" if self._is_terminal else "\n")

    def say(self, sentence: str) -> None:
        """A line that stays."""
        self._show(sentence, end="\n")

    def _text(self, done: int, failed: int, rate: float) -> str:
        share = min(1.0, done / max(1, self._per_pass))
        bar = "#" * round(24 * share) + "." * (24 - round(24 * share))
        trouble = f", {failed} FAILED" if failed else ""
        place = f"pass {self._pass_index + 1}/{self._passes}"
        return f"{self._title} {place} [{bar}] {done}/{self._per_pass}{trouble}  {rate:,.0f} tok/s"

    def _show(self, text: str, *, end: str) -> None:
        start = "\r\x1b[2K" if self._is_terminal else ""
        self._stream.write(start + text + end)
        self._stream.flush()
