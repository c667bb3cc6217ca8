"""The highest throughput that keeps the service levels: a search over concurrency, with confidence, resumable.

    python -m workloads.operating_point WORKLOAD.json --url URL --out FOLDER [--low 1] [--high 256] [--repeats 3]
        [--limit-s S]

Each probe is a valid run of the workload at one concurrency, kept in its own folder, so that a search that was
interrupted goes on where it stopped and no result is measured twice. A level holds at a concurrency when the
one-sided 95 % bound of its mean over repeats is inside; one repeat decides alone and is labelled `indicative`. The
search doubles until a level breaks (or halves, where the first one does), then halves the interval: latencies rise with
concurrency, and a probe that contradicts that is reported. A probe gets as many requests as fill the window at the rate
of the nearest probe below it, raised in proportion. An INVALID probe ends the search, because it says nothing about the
server, and so does a limit on time within which no further probe would end; what was found by then stands, and the
result says why it ended. The records of the best point's first repeat lie in FOLDER itself, as those of any session.
"""

import argparse
import dataclasses
import math
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from workloads.client import Target, run_workload
from workloads.client_facts import CLIENT_FILE
from workloads.files import read_json, write_json
from workloads.metrics import METRICS_FILE, write_session_metrics
from workloads.preparation import NotReadyError
from workloads.records import CHUNKS_FILE, REQUESTS_FILE
from workloads.slo import PUBLISHED, Slo
from workloads.spec import ClosedLoad, Identity, SpecError, Workload, parse

POINT_SCHEMA = "operating_point/1"
POINT_FILE = "operating_point.json"


RECORDS = (REQUESTS_FILE, CHUNKS_FILE, CLIENT_FILE)
LONGER = 1.3
"""By how much the next probe may take longer than the longest so far."""
MARGIN = 1.15
"""Requests of a probe over those that its window is expected to need."""


class InvalidProbeError(RuntimeError):
    """A probe was no result; its reasons are the message."""


@dataclasses.dataclass(frozen=True, slots=True)
class Probe:
    """All repeats at one concurrency."""

    concurrency: int
    levels: Sequence[Slo]
    values: Sequence[dict[str, float | None]]
    """The metrics of each repeat."""

    def upper(self, slo: Slo) -> float | None:
        """One-sided 95 % bound of the level's mean over repeats; the value itself with one repeat."""
        found = [v[slo.key] for v in self.values]
        if any(value is None for value in found):
            return None
        sample = np.asarray(found, dtype=float)
        if sample.size == 1:
            return float(sample[0])
        quantile = stats.t.ppf(0.95, sample.size - 1)
        return float(sample.mean() + quantile * sample.std(ddof=1) / math.sqrt(sample.size))

    @property
    def holds(self) -> bool:
        """Whether every level is met. A level without a value is not met."""
        return all((bound := self.upper(slo)) is not None and bound < slo.bound for slo in self.levels)

    @property
    def throughput(self) -> float:
        """Mean output tokens per second."""
        return float(np.mean([v["output_tok_s"] or 0.0 for v in self.values]))

    def as_json(self) -> dict[str, Any]:
        """The probe as it stands in the result."""
        return {
            "concurrency": self.concurrency,
            "holds": self.holds,
            "output_tok_s": self.throughput,
            "repeats": len(self.values),
            "levels": [
                {"slo": str(s), "values": [v[s.key] for v in self.values], "upper95": self.upper(s)}
                for s in self.levels
            ],
        }


Measure = Callable[[int, int], dict[str, float | None]]
"""Metrics of repeat `i` at a concurrency: `measure(concurrency, i)`."""


def search(
    measure: Measure,
    levels: Sequence[Slo],
    *,
    low: int,
    high: int,
    repeats: int,
    note: Callable[[Probe], None],
    may_go_on: Callable[[], bool] = lambda: True,
) -> dict[str, Any]:
    """Find the largest concurrency in [low, high], or below where `low` breaks, at which all levels hold.

    `may_go_on` is asked before every probe but the first. Raises InvalidProbeError when the first probe is INVALID.
    """
    probes: dict[int, Probe] = {}
    edge = _Edge(low, high)
    ended = ""
    while (concurrency := edge.next()) is not None and not ended:
        if probes and not may_go_on():
            ended = "no time was left for a further probe"
            break
        try:
            values = [measure(concurrency, i) for i in range(repeats)]
        except InvalidProbeError as error:
            if not probes:
                raise
            ended = f"INVALID: {error}"
            break
        probes[concurrency] = Probe(concurrency, levels, values)
        note(probes[concurrency])
        edge.put(concurrency, holds=probes[concurrency].holds)
    return _result(probes, levels, good=edge.good, bad=edge.bad, repeats=repeats) | {"ended": ended}


class _Edge:
    """Where to probe next: `good` is the last concurrency that held, `bad` the first that did not; 0 for none yet."""

    def __init__(self, low: int, high: int) -> None:
        self.good = self.bad = 0
        self._low, self._high = low, high

    def put(self, concurrency: int, *, holds: bool) -> None:
        """What a probe showed."""
        if holds:
            self.good = concurrency
        else:
            self.bad = concurrency

    def next(self) -> int | None:
        """The next concurrency, or None when the edge is found closely enough or lies outside."""
        if self.good and self.bad:
            wide = self.bad - self.good > max(1, self.good // 32)
            return (self.good + self.bad) // 2 if wide else None
        if self.good:
            return min(self._high, 2 * self.good) if self.good < self._high else None
        if self.bad:
            return self.bad // 2 or None
        return self._low


def _result(probes: dict[int, Probe], levels: Sequence[Slo], *, good: int, bad: int, repeats: int) -> dict[str, Any]:
    holding = [p for p in probes.values() if p.holds]
    best = max(holding, key=lambda p: p.throughput, default=None)
    breaking = [c for c, p in probes.items() if not p.holds]
    contradicted = bool(holding and breaking and max(p.concurrency for p in holding) > min(breaking))
    return {
        "schema": POINT_SCHEMA,
        "levels": [str(slo) for slo in levels],
        "best": best.as_json() if best else None,
        "largest_holding": good or None,
        "smallest_breaking": bad or None,
        "confidence": "95 %" if repeats > 1 else "indicative",
        "not_monotone": contradicted,
        "probes": [probes[c].as_json() for c in sorted(probes)],
    }


class Prober:
    """Measures probes against a server and keeps each in its folder."""

    def __init__(self, workload: Workload, target: Target, folder: Path, *, progress: bool) -> None:
        if not isinstance(workload.load, ClosedLoad):
            raise SpecError("an operating point is searched over concurrency: use load closed")
        self._workload = workload
        self._load = workload.load
        self._target = target
        self._folder = folder
        self._progress = progress
        self._rates: dict[int, float] = {}
        """Requests a second by concurrency, of every probe so far."""

    def measure(self, concurrency: int, repeat: int) -> dict[str, float | None]:
        """The metrics of one probe, measured or found. Raises InvalidProbeError, NotReadyError."""
        folder = self._folder / f"c{concurrency}" / f"r{repeat}"
        path = folder / METRICS_FILE
        if not path.is_file():
            shutil.rmtree(folder, ignore_errors=True)  # a probe that was cut off
            facts = run_workload(self.at(concurrency, repeat), self._target, folder, progress=self._progress)
            if facts["status"] == "interrupted":
                raise KeyboardInterrupt
            write_session_metrics(folder)
        body = read_json(path)
        if body["validity"]["verdict"] != "VALID":
            reasons = "; ".join(body["validity"]["reasons"])
            raise InvalidProbeError(f"concurrency {concurrency}, repeat {repeat}: {reasons}")
        values: dict[str, float | None] = body["metrics"]
        self._rates[concurrency] = values["requests_s"] or 0.0
        return values

    def at(self, concurrency: int, repeat: int) -> Workload:
        """The workload at another concurrency, with prompts of its own."""
        base = self._workload
        identity = base.identity.model_dump() | {"row": f"{base.identity.row}-c{concurrency}-r{repeat}"}
        changes = {
            "load": self._load.model_copy(update={"concurrency": concurrency}),
            "identity": Identity(**identity),
            "requests_per_pass": self._requests(concurrency),
        }
        return base.model_copy(update=changes)

    def keep(self, concurrency: int) -> None:
        """Put the records of a probe's first repeat in the folder itself."""
        for name in RECORDS:
            shutil.copyfile(self._folder / f"c{concurrency}" / "r0" / name, self._folder / name)

    def _requests(self, concurrency: int) -> int | None:
        """Enough for the shortest allowed window should the rate rise as the concurrency does."""
        planned = self._workload.requests_per_pass
        if planned is None:
            return None
        below = max((known for known in self._rates if known <= concurrency), default=None)
        if below is None or not self._workload.limits.min_window_s:
            return math.ceil(planned * max(1.0, concurrency / self._load.concurrency))
        rate = self._rates[below] * concurrency / below
        return max(concurrency, math.ceil(MARGIN * rate * self._workload.limits.min_window_s))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit codes: 0 found, 2 a mistake, 3 not ready, 6 the first probe was INVALID, 7 no concurrency
    keeps the levels, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        workload = parse(options.workload.read_bytes())
        levels = workload.slo or PUBLISHED
        target = Target(url=options.url, flush_urls=tuple(options.flush_url))
        prober = Prober(workload, target, options.out, progress=not options.no_progress)
        clock = _Clock(options.limit_s)
        result = search(
            prober.measure, levels, low=options.low, high=options.high, repeats=options.repeats,
            note=clock.note, may_go_on=clock.may_go_on,
        )  # fmt: skip
    except (SpecError, FileNotFoundError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except NotReadyError as error:
        sys.stderr.write(f"error: {error}\n")
        return 3
    except InvalidProbeError as error:
        sys.stderr.write(f"INVALID: {error}; remove its folder to measure it again\n")
        return 6
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: the same command goes on from here\n")
        return 130
    write_json(options.out / POINT_FILE, result)
    best = result["best"]
    if result["ended"]:
        sys.stderr.write(f"ended early: {result['ended']}\n")
    if best is None:
        sys.stderr.write("no point holds: every concurrency that was probed breaks a service level\n")
        return 7
    prober.keep(best["concurrency"])
    sys.stdout.write(f"{best['output_tok_s']:,.1f} output tok/s at concurrency {best['concurrency']}\n")
    return 0


class _Clock:
    """Notes probes as they end, and knows whether one more would end in time."""

    def __init__(self, limit_s: float) -> None:
        self._began_s = self._last_s = time.monotonic()
        self._limit_s, self._longest_s = limit_s, 0.0

    def note(self, probe: Probe) -> None:
        """A probe ended."""
        now_s = time.monotonic()
        self._longest_s, self._last_s = max(self._longest_s, now_s - self._last_s), now_s
        _say(probe)

    def may_go_on(self) -> bool:
        """Whether another one fits; always without a limit."""
        spent_s = time.monotonic() - self._began_s
        return not self._limit_s or spent_s + LONGER * self._longest_s <= self._limit_s


def _say(probe: Probe) -> None:
    verdict = "holds" if probe.holds else "breaks"
    bounds = ", ".join(f"{slo}: {probe.upper(slo)}" for slo in probe.levels)
    sys.stderr.write(f"concurrency {probe.concurrency} {verdict}: {probe.throughput:,.1f} tok/s ({bounds})\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workloads.operating_point", description="Search the highest throughput within service levels."
    )
    parser.add_argument("workload", type=Path, help="resolved workload (JSON); its slo, or the published 6 s and 25 ms")
    parser.add_argument("--url", required=True, help="server or router")
    parser.add_argument("--out", type=Path, required=True, help="folder that keeps every probe")
    parser.add_argument("--low", type=int, default=1, help="smallest concurrency")
    parser.add_argument("--high", type=int, default=256, help="largest concurrency")
    parser.add_argument("--repeats", type=int, default=3, help="runs at each concurrency; 1 is indicative")
    parser.add_argument("--limit-s", type=float, default=0.0, help="begin no probe that would not end in this time")
    parser.add_argument("--flush-url", action="append", default=[], help="server to flush; repeat")
    parser.add_argument("--no-progress", action="store_true", help="print only the probes' verdicts")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
