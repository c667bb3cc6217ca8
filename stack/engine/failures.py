"""A line in the log for each request whose hand-off failed, and no flood of them.

Knows nothing of why requests fail. Invariant: no more than `MAX_LINES` failures are listed in `WINDOW_S`; the rest is
counted, and the log says so.
"""

import logging

from stack.core.clock import Clock

MAX_LINES = 20
WINDOW_S = 10.0
_LOG = logging.getLogger(__name__)


class FailureLog:
    """Writes for one instance."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._window_s = float("-inf")
        self._num_listed = 0
        self._num_counted = 0

    def note(self, rid: str, room: int, reason: str, status: int) -> None:
        """A request failed; `status` is the HTTP status of its answer."""
        self._turn_window()
        if self._num_listed < MAX_LINES:
            self._num_listed += 1
            _LOG.warning("the hand-off of request %s (room %d) failed with %d: %s", rid, room, status, reason)
            return
        if not self._num_counted:
            _LOG.warning("more requests fail; those of the next %g s are counted and not listed", WINDOW_S)
        self._num_counted += 1

    def _turn_window(self) -> None:
        now_s = self._clock.now_s()
        if now_s - self._window_s < WINDOW_S:
            return
        if self._num_counted:
            _LOG.warning("%d more requests failed and were not listed", self._num_counted)
        self._window_s, self._num_listed, self._num_counted = now_s, 0, 0
