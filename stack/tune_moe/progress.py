"""One line that is drawn over on a terminal; elsewhere a line now and then, so that a log stays short."""

import sys
import time
from typing import TextIO

_WIDTH = 24
_EVERY_S = 10.0


class Bar:
    """`total` candidates in all."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._done = 0
        self._begun_s = time.monotonic()
        self._shown_s = -_EVERY_S

    def step(self, what: str) -> None:
        """The next candidate begins."""
        self._done = min(self._done + 1, self._total)
        now_s = time.monotonic()
        if self._is_terminal or now_s - self._shown_s >= _EVERY_S:
            self._shown_s = now_s
            self._show(what, now_s - self._begun_s)

    def skip(self, count: int) -> None:
        """Candidates that need not be tried."""
        self._done = min(self._done + count, self._total)

    def say(self, sentence: str) -> None:
        """A line that stays."""
        self._stream.write(("\r\x1b[K" if self._is_terminal else "") + sentence + "\n")
        self._stream.flush()

    def _show(self, what: str, spent_s: float) -> None:
        full = _WIDTH * self._done // self._total
        line = f"[{'#' * full}{'.' * (_WIDTH - full)}] {self._done} of {self._total}, {spent_s:.0f} s: {what}"
        self._stream.write(f"\r\x1b[K{line}" if self._is_terminal else f"{line}\n")
        self._stream.flush()
