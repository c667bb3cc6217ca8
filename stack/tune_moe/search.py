"""The search itself: which tile is fastest over many routes, by a timer that somebody else brings. Knows no GPU.

Both products share the rows of a tile, since the sorted layout is padded to them, so a candidate is a whole layer:
sort, up, activation, down, sum. For each number of rows the launch of one product is varied under a fixed launch of the
other, then the best few of both are timed together, since what one leaves in the caches meets the other.

A candidate wins on the tuning routes by its mean. It is refused when its 90th percentile is worse than the untuned
tile's, and when routes of other requests, held out of the search, do not show it faster too. Timings are asked for in
turn with the untuned tile's, so that a clock that drifts hurts both alike.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Protocol

from stack.kernels.moe.tables import Launch, Tile


class TileError(Exception):
    """The device cannot run a tile: too much shared memory, too many registers."""


class Timer(Protocol):
    """Times a whole layer of experts."""

    def __call__(self, tile: Tile, part: str, route: int) -> float:
        """Microseconds of one layer with route number `route` of `part` ("tune" or "held"). Raises TileError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What may be tried."""

    rows: tuple[int, ...] = (16, 32, 64, 128)
    warps: tuple[int, ...] = (4, 8)
    stages: tuple[int, ...] = (2, 3, 4, 5)
    num_joint: int = 2
    """Best launches of each product that are timed together."""
    num_confirmed: int = 3
    """Best candidates that are tried on held-out routes, until one holds."""

    @property
    def launches(self) -> list[Launch]:
        """Every launch of one product, the likeliest first, so that a search cut short has seen them."""
        likely = Launch(4, 4)
        return sorted(map(Launch, *zip(*product(self.warps, self.stages), strict=True)), key=lambda x: x != likely)

    def num_timed(self) -> int:
        """Candidates at most."""
        return len(self.rows) * (2 * len(self.launches) + self.num_joint**2)


@dataclass(frozen=True, slots=True)
class Score:
    """Microseconds over all routes of a part."""

    mean_us: float
    p90_us: float

    @classmethod
    def of(cls, times_us: Iterable[float]) -> "Score":
        """From one time a route."""
        ordered = sorted(times_us)
        return cls(fmean(ordered), ordered[math.ceil(0.9 * len(ordered)) - 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was found for one number of rows. `tile` is the untuned one where nothing held."""

    tile: Tile
    default: Tile
    tuned: dict[str, Score]
    """Of `tile`, by part."""
    untuned: dict[str, Score]
    """Of `default`, by part, timed in turn with it."""
    num_timed: int
    num_unable: int
    refused: tuple[str, ...]
    """Why better-looking tiles were not taken."""

    @property
    def gain(self) -> float:
        """Untuned over tuned time on held-out routes."""
        return self.untuned["held"].mean_us / self.tuned["held"].mean_us


class Search:
    """One number of rows. `num_routes` routes of each part; `on_candidate` is called before each candidate."""

    def __init__(
        self,
        timer: Timer,
        space: Space,
        default: Tile,
        *,
        num_routes: dict[str, int],
        on_candidate: Callable[[Tile], None] = lambda tile: None,
    ) -> None:
        self._timer = timer
        self._space = space
        self._default = default
        self._num_routes = num_routes
        self._on_candidate = on_candidate
        self._scores: dict[Tile, Score | None] = {}

    def run(self) -> Choice:
        """Search, then confirm. Raises TileError when even the untuned tile does not run."""
        if self._score(self._default) is None:
            raise TileError(f"the untuned tile {self._default} does not run here, so there is nothing to compare with")
        for rows in self._space.rows:
            self._vary(rows)
        return self._confirm()

    def _vary(self, rows: int) -> None:
        ups = self._best(Tile(rows, launch, self._default.down) for launch in self._space.launches)
        if not ups:
            return
        downs = self._best(Tile(rows, ups[0].up, launch) for launch in self._space.launches)
        for up, down in product(ups, downs):
            self._score(Tile(rows, up.up, down.down))

    def _best(self, tiles: Iterable[Tile]) -> list[Tile]:
        scored = [(score.mean_us, tile) for tile in tiles if (score := self._score(tile)) is not None]
        return [tile for _, tile in sorted(scored)[: self._space.num_joint]]

    def _score(self, tile: Tile) -> Score | None:
        """On the tuning routes; None where the tile does not run."""
        if tile not in self._scores:
            self._on_candidate(tile)
            try:
                self._scores[tile] = Score.of(self._timer(tile, "tune", r) for r in range(self._num_routes["tune"]))
            except TileError:
                self._scores[tile] = None
        return self._scores[tile]

    def _confirm(self) -> Choice:
        able = sorted((score.mean_us, tile) for tile, score in self._scores.items() if score is not None)
        refused: list[str] = []
        for _, tile in able[: self._space.num_confirmed]:
            if tile == self._default:
                break
            tuned, untuned = self._in_turn(tile)
            if reason := _reason_against(tuned, untuned):
                refused.append(f"{tile}: {reason}")
                continue
            return self._choice(tile, tuned, untuned, refused)
        same, _ = self._in_turn(self._default)
        return self._choice(self._default, same, same, refused)

    def _in_turn(self, tile: Tile) -> tuple[dict[str, Score], dict[str, Score]]:
        """Both tiles' scores of both parts, each route timed with one and then the other."""
        tuned, untuned = {}, {}
        for part, count in self._num_routes.items():
            pairs = [
                (self._timer(tile, part, route), self._timer(self._default, part, route)) for route in range(count)
            ]
            tuned[part], untuned[part] = Score.of(a for a, _ in pairs), Score.of(b for _, b in pairs)
        return tuned, untuned

    def _choice(self, tile: Tile, tuned: dict[str, Score], untuned: dict[str, Score], refused: list[str]) -> Choice:
        unable = sum(score is None for score in self._scores.values())
        return Choice(
            tile=tile,
            default=self._default,
            tuned=tuned,
            untuned=untuned,
            num_timed=len(self._scores),
            num_unable=unable,
            refused=tuple(refused),
        )


def _reason_against(tuned: dict[str, Score], untuned: dict[str, Score]) -> str:
    """Why a tile is not taken, or nothing."""
    if tuned["tune"].p90_us > untuned["tune"].p90_us:
        return f"its slow routes are slower ({tuned['tune'].p90_us:.1f} against {untuned['tune'].p90_us:.1f} us)"
    if tuned["held"].mean_us >= untuned["held"].mean_us:
        held = f"{tuned['held'].mean_us:.1f} against {untuned['held'].mean_us:.1f} us"
        return f"routes of other requests do not show it faster ({held})"
    return ""
