"""Share of the experts that a decode step touches, looked up among shares that were counted on recorded routes.

`np1d routes FILE` writes them beside a testbed's results. Between two counted batches the share is interpolated over
the logarithm of their requests; above the largest it is that one's, since more rows touch no fewer experts.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from reports.json_files import json_of

FILE = "experts.json"


@dataclass(frozen=True, slots=True)
class Experts:
    """`shares`: by verify width, (requests, share) with requests rising."""

    shares: dict[int, tuple[tuple[int, float], ...]]
    source: str

    def share(self, requests: float, width: int) -> float:
        """NaN where no batch of this width was counted or this one is smaller than all that were."""
        points = self.shares.get(width, ())
        if not points or requests < points[0][0]:
            return math.nan
        for (low, before), (high, after) in pairwise(points):
            if requests <= high:
                along = math.log(requests / low) / math.log(high / low)
                return before + along * (after - before)
        return points[-1][1]


def read_experts(folder: Path) -> Experts:
    """Those of a testbed's results; without a file nothing is known."""
    body: dict[str, Any] = json_of(folder / FILE)
    shares: dict[int, list[tuple[int, float]]] = {}
    for one in body.get("shares", ()):
        shares.setdefault(int(one["width"]), []).append((int(one["requests"]), float(one["mean"])))
    return Experts({width: tuple(sorted(points)) for width, points in shares.items()}, str(body.get("source", "")))
