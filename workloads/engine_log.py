"""The engine's step log as the metrics need it: what ran, and how full the pages were, inside the windows.

A log is JSON lines with at least `t_s` (monotonic or wall clock), `running`, `pages_used`, `pages_total`. Only steps
that decode say how many requests run; a log without such steps counts with all of its steps.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from workloads.window import Window

_UNIX_FROM_S = 1e9
"""A clock reading above this is wall time: no machine has been up for thirty years."""


@dataclasses.dataclass(frozen=True, slots=True)
class EngineView:
    """The lines of one or more step logs."""

    lines: Sequence[dict[str, Any]]

    def medians(
        self, starts: Sequence[tuple[float, float]], windows: Sequence[Window]
    ) -> tuple[float | None, float | None]:
        """Median of running requests and of the share of pages used; `starts` are each pass's t0 (monotonic, wall)."""
        inside = [
            line
            for line in self.lines
            for (monotonic, wall), window in zip(starts, windows, strict=False)
            if window.start_s <= line["t_s"] - (wall if line["t_s"] > _UNIX_FROM_S else monotonic) <= window.end_s
        ]
        decoding = [
            line for line in inside if "decode" in str(line.get("kind")) or line.get("kind") == "verify"
        ] or inside
        running = [float(line["running"]) for line in decoding if line.get("running") is not None]
        pages = [line["pages_used"] / line["pages_total"] for line in decoding if line.get("pages_total")]
        return (float(np.median(running)) if running else None, float(np.median(pages)) if pages else None)


def read_engine_log(paths: Sequence[Path]) -> EngineView:
    """All whole lines of the logs; a last line cut short by the end of a process is left out. Raises ValueError."""
    lines: list[dict[str, Any]] = []
    for path in paths:
        raw = path.read_bytes().splitlines()
        for number, line in enumerate(raw, start=1):
            try:
                lines.append(orjson.loads(line))
            except orjson.JSONDecodeError as error:
                if number == len(raw):
                    continue
                raise ValueError(f"{path.name}, line {number}, is not JSON") from error
    return EngineView(lines)
