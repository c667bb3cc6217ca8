"""Time as an argument, so that deadlines and polling are tested without waiting."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that never go backwards."""

    def now_s(self) -> float:
        """Seconds since an arbitrary start."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Seconds since the machine's own start."""
        return time.monotonic()
