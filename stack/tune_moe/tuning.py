"""Tunes one number of rows after the other and writes the table, complete or as far as the time allowed.

Knows no GPU: what times a layer and holds it against the formula is a `Layer`.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from stack.core.errors import EngineError
from stack.kernels.moe.routes import Routes
from stack.kernels.moe.tables import SCHEMA, ExpertShape, Tile
from stack.tune_moe.journal import Journal
from stack.tune_moe.progress import Bar
from stack.tune_moe.search import Choice, Search, Space, Timer

MOST_ERROR = 0.02
"""Relative distance from the formula that rounding alone stays below."""


class _TimeUpError(Exception):
    """What was timed so far is in the journal."""


class Layer(Protocol):
    """One layer of experts on a device."""

    def untuned(self, num_rows: int) -> Tile:
        """The tile without a table."""
        ...

    def timer(self, num_rows: int, routes: dict[str, list[Tensor]]) -> Timer:
        """Times it over routes."""
        ...

    def error(self, tile: Tile) -> float:
        """Relative distance from the formula, block scales uneven."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to tune, and how long at most."""

    shape: ExpertShape
    versions: dict[str, str]
    routes: Routes
    rows: tuple[int, ...]
    space: Space
    num_routes: int
    limit_s: float
    out: Path
    journal: Path


def tune(job: Job, layer: Layer, *, clock: Callable[[], float] = time.monotonic) -> list[int]:
    """Returns the row counts that are still to be tuned: those that the time did not allow. Raises EngineError for a
    tile whose result is wrong, whatever its speed."""
    end_s = clock() + job.limit_s
    subject = {"shape": asdict(job.shape), "versions": job.versions, "routes": _facts(job)}
    journal = Journal(job.journal, subject)
    bar = Bar(len(job.rows) * job.space.num_timed())
    if journal.num_known:
        bar.say(f"{journal.num_known} timings of an earlier run are taken from {job.journal}")
    entries: dict[int, dict[str, Any]] = {}
    try:
        for number, num_rows in enumerate(job.rows, start=1):
            choice = _tune_rows(job, layer, journal, bar, num_rows, lambda: clock() > end_s)
            bar.skip(number * job.space.num_timed())
            entries[num_rows] = _entry(choice, layer.error(choice.tile))
            bar.say(_sentence(num_rows, choice, entries[num_rows]["error"]))
            _write(job, entries)
    except _TimeUpError:
        pass
    finally:
        journal.close()
    return [num_rows for num_rows in job.rows if num_rows not in entries]


def _tune_rows(
    job: Job, layer: Layer, journal: Journal, bar: Bar, num_rows: int, is_over: Callable[[], bool]
) -> Choice:
    tuning, held = job.routes.split()
    batches = {
        "tune": tuning.batches(num_rows, job.num_routes),
        "held": held.batches(num_rows, max(2, job.num_routes // 2)),
    }
    timer = layer.timer(num_rows, batches)

    def timed(tile: Tile, part: str, route: int) -> float:
        if is_over():
            raise _TimeUpError
        return timer(tile, part, route)

    search = Search(
        journal.timer(num_rows, timed),
        job.space,
        layer.untuned(num_rows),
        num_routes={part: len(routes) for part, routes in batches.items()},
        on_candidate=lambda tile: bar.step(f"{num_rows} rows, {_words(tile)}"),
    )
    return search.run()


def _entry(choice: Choice, error: float) -> dict[str, Any]:
    if not error <= MOST_ERROR:
        raise EngineError(f"{_words(choice.tile)} computes something else: relative error {error:.3g}")
    return {**asdict(choice), "gain": choice.gain, "error": error}


def _write(job: Job, entries: dict[int, dict[str, Any]]) -> None:
    body = {
        "schema": SCHEMA,
        "shape": asdict(job.shape),
        "versions": job.versions,
        "routes": _facts(job),
        "rows": {str(num_rows): entry for num_rows, entry in sorted(entries.items())},
    }
    job.out.parent.mkdir(parents=True, exist_ok=True)
    job.out.write_text(json.dumps(body, indent=1) + "\n")


def _facts(job: Job) -> dict[str, Any]:
    """Of the routes, as the table and the journal keep them."""
    counts = [len(layer.ids_RK) for layer in job.routes.layers.values()]
    return {**job.routes.notes, "num_layers": len(counts), "num_rows": sum(counts), "routes_each": job.num_routes}


def _sentence(num_rows: int, choice: Choice, error: float) -> str:
    tuned, untuned = choice.tuned["held"].mean_us, choice.untuned["held"].mean_us
    found = "the untuned tile stays" if choice.tile == choice.default else f"{tuned:.1f} us, {choice.gain:.3f} times"
    return f"{num_rows} rows: untuned {untuned:.1f} us; {_words(choice.tile)}: {found}; relative error {error:.1e}"


def _words(tile: Tile) -> str:
    up, down = tile.up, tile.down
    return f"{tile.rows}-row tiles, up {up.warps} warps {up.stages} stages, down {down.warps} and {down.stages}"
