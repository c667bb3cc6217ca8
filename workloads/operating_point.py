"""The highest throughput that keeps the service levels: a search over concurrency, with confidence, resumable.

    python -m workloads.operating_point WORKLOAD.json --url URL --out FOLDER [--low 1] [--high 256] [--repeats 3]

Each probe is a valid run of the workload at one concurrency, kept in its own folder, so that a search that was
interrupted goes on where it stopped and no result is measured twice. A level holds at a concurrency when the
one-sided 95 % bound of its mean over repeats is inside; one repeat decides alone and is labelled `indicative`. The
search doubles until a level breaks, then halves the interval: latencies rise with
concurrency, and a probe that contradicts that is reported. An INVALID probe ends the search, because it says nothing
about the server.
"""

import argparse
import dataclasses
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from workloads.client import Target, run_workload
from workloads.files import read_json, write_json
from workloads.metrics import METRICS_FILE, write_session_metrics
from workloads.preparation import NotReadyError
from workloads.slo import PUBLISHED, Slo
from workloads.spec import ClosedLoad, Identity, SpecError, Workload, parse

POINT_SCHEMA = "operating_point/1"
POINT_FILE = "operating_point.json"


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
    measure: Measure, levels: Sequence[Slo], *, low: int, high: int, repeats: int, note: Callable[[Probe], None]
) -> dict[str, Any]:
    """Find the largest concurrency in [low, high] at which all levels hold."""
    probes: dict[int, Probe] = {}

    def probe(concurrency: int) -> Probe:
        if concurrency not in probes:
            values = [measure(concurrency, i) for i in range(repeats)]
            probes[concurrency] = Probe(concurrency, levels, values)
            note(probes[concurrency])
        return probes[concurrency]

    good, bad = _bracket(lambda c: probe(c).holds, low, high)
    while good and bad and bad - good > max(1, good // 32):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if probe(middle).holds else (good, middle)
    return _result(probes, levels, good=good, bad=bad, repeats=repeats)


def _bracket(holds: Callable[[int], bool], low: int, high: int) -> tuple[int, int]:
    """The last concurrency that holds and the first that does not, doubling from `low`; 0 where there is none."""
    good, concurrency = 0, low
    while concurrency <= high:
        if not holds(concurrency):
            return good, concurrency
        good = concurrency
        concurrency = min(high, 2 * concurrency) if concurrency < high else high + 1
    return good, 0


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
        return values

    def at(self, concurrency: int, repeat: int) -> Workload:
        """The workload at another concurrency, with prompts of its own."""
        base = self._workload
        identity = base.identity.model_dump() | {"row": f"{base.identity.row}-c{concurrency}-r{repeat}"}
        changes = {"load": self._load.model_copy(update={"concurrency": concurrency}), "identity": Identity(**identity)}
        return base.model_copy(update=changes)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit codes: 0 found, 2 a mistake, 3 not ready, 5 a probe was INVALID, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        workload = parse(options.workload.read_bytes())
        levels = workload.slo or PUBLISHED
        target = Target(url=options.url, flush_urls=tuple(options.flush_url))
        prober = Prober(workload, target, options.out, progress=not options.no_progress)
        result = search(prober.measure, levels, low=options.low, high=options.high, repeats=options.repeats, note=_say)
    except (SpecError, FileNotFoundError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except NotReadyError as error:
        sys.stderr.write(f"error: {error}\n")
        return 3
    except InvalidProbeError as error:
        sys.stderr.write(f"INVALID: {error}; remove its folder to measure it again\n")
        return 5
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: the same command goes on from here\n")
        return 130
    write_json(options.out / POINT_FILE, result)
    best = result["best"]
    place = (
        f"{best['output_tok_s']:,.1f} output tok/s at concurrency {best['concurrency']}" if best else "no point holds"
    )
    sys.stdout.write(place + "\n")
    return 0


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
    parser.add_argument("--flush-url", action="append", default=[], help="server to flush; repeat")
    parser.add_argument("--no-progress", action="store_true", help="print only the probes' verdicts")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
