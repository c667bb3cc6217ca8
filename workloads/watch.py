"""Watches the client itself: lag of its event loop, silent requests, the pass's deadline."""

import asyncio
import dataclasses

import numpy as np

from workloads.stream import Traffic, now_s

PROBE_PERIOD_S = 0.01
_WATCH_PERIOD_S = 0.1


class LoopLag:
    """How late the event loop wakes a sleeper: what any timestamp of this client may be wrong by."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []
        """When it was measured (monotonic), and the lag in milliseconds."""

    async def run(self) -> None:
        """Sleep and compare, until cancelled."""
        while True:
            before = now_s()
            await asyncio.sleep(PROBE_PERIOD_S)
            after = now_s()
            self.samples.append((after, 1000 * (after - before - PROBE_PERIOD_S)))


def lag_summary(samples_ms: list[float]) -> dict[str, float | int | None]:
    """Median, p99 and largest lag; null without samples."""
    if not samples_ms:
        return {"loop_lag_p50_ms": None, "loop_lag_p99_ms": None, "loop_lag_max_ms": None, "num_lag_samples": 0}
    p50, p99, largest = np.percentile(np.asarray(samples_ms), [50, 99, 100]).tolist()
    return {
        "loop_lag_p50_ms": p50,
        "loop_lag_p99_ms": p99,
        "loop_lag_max_ms": largest,
        "num_lag_samples": len(samples_ms),
    }


@dataclasses.dataclass(slots=True)
class Watchdog:
    """Gives up requests that are silent for `stall_s`, and everything at `deadline_s` or when told to stop."""

    traffic: Traffic
    stall_s: float
    deadline_s: float
    stopped: tuple[str, str] | None = None
    """Why nothing more is sent: error kind and sentence."""

    async def run(self) -> None:
        """Look several times a second, until cancelled."""
        started = now_s()
        while True:
            await asyncio.sleep(min(_WATCH_PERIOD_S, self.stall_s / 4))
            now = now_s()
            if now - started > self.deadline_s:
                self.stop("deadline", f"the pass took longer than {self.deadline_s:g} s")
            for flight in list(self.traffic.by_id.values()):
                if now - flight.last_event_s > self.stall_s:
                    flight.give_up("stall", f"no event for {self.stall_s:g} s")

    def stop(self, kind: str, sentence: str) -> None:
        """Send nothing more and give up what is under way; what has ended is kept."""
        self.stopped = self.stopped or (kind, sentence)
        for flight in list(self.traffic.by_id.values()):
            flight.give_up(kind, sentence)
