"""`np1d gate` and `np1d calibrate`: from selected rows to verdicts, files and an exit code."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from workflows import baselines, calibration
from workflows.catalog import load_catalog
from workflows.errors import WorkflowError
from workflows.gate import EXIT_CODES, GatedCell, InvalidSessionError, run_gate
from workflows.gate_report import as_markdown, write_all
from workflows.gating import (
    ROOT,
    Place,
    SessionMaker,
    checkout_base,
    existing_sessions,
    gated_cells,
    load_baselines,
    update_store,
)
from workflows.provenance import code, machine
from workflows.targets import Selection

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateRequest:
    """What to compare with what."""

    rows: tuple[str, ...]
    testbed: str
    base: str
    store: Path | None
    existing: bool
    update: bool
    out: Path


def gate(request: GateRequest, say: Say) -> int:
    """Run the gate; returns its exit code. Raises WorkflowError for what the user can mend."""
    if bool(request.base) == bool(request.store):
        raise WorkflowError("give one of --base COMMIT and --store FOLDER")
    if request.store and not request.store.is_dir() and not request.update:
        raise WorkflowError(f"there is no store {request.store}; --update begins one, and --base COMMIT needs none")
    cells = _cells(request.rows, request.testbed)
    base = checkout_base(request.base) if request.base else None
    _refuse_uncalibrated(request.testbed, cells, say)
    maker = SessionMaker({name: place for name, (place, _) in cells.items()}, _run_name(), base=base, say=say)
    if not request.existing:
        say(_amount([cell for _, cell in cells.values()], sides=2 if base else 1))
    with _kept_when_interrupted(maker, "no verdict", say):
        folders = _prepare(request, cells, maker)
        verdict = run_gate([cell for _, cell in cells.values()], None if request.existing else maker)
    facts = {
        "testbed": request.testbed,
        "baseline": request.base or "store",
        "candidate_commit": code()["commit"],
        "machine": machine()["cpu"],
    }
    gated = [cell for _, cell in cells.values()]
    write_all(gated, verdict, facts, request.out)
    say(as_markdown(gated, verdict, {}))
    if request.update and request.store and verdict != "FAIL":
        for name in cells:
            folders[name] = folders.get(name, []) + maker.folders.get(f"candidate {name}", [])
        say(f"{update_store(cells, folders, request.store)} sessions added to the store")
    return EXIT_CODES[verdict]


def calibrate(rows: tuple[str, ...], testbed: str, sessions: int, say: Say) -> None:
    """Measure each cell again and again, save its noise, and refuse thresholds below it. Raises WorkflowError."""
    cells = _cells(rows, testbed)
    maker = SessionMaker({name: place for name, (place, _) in cells.items()}, _run_name(), base=None, say=say)
    with _kept_when_interrupted(maker, "nothing was calibrated", say):
        found = [_calibrate_cell(name, cell, maker, sessions) for name, (_, cell) in cells.items()]
    path = calibration_file(testbed)
    known = {(old.cell, old.metric): old for old in calibration.load(path)}
    known |= {(new.cell, new.metric): new for new in found}
    calibration.save(path, list(known.values()))
    for one in found:
        within = "" if one.within is None else f", {one.within:.2%} between passes"
        say(f"{one.cell} {one.metric}: {one.between:.2%} between sessions{within}; three sessions uphold "
            f"{one.least_regression(3):.1%}")  # fmt: skip
    for one in found:
        calibration.check(one, cells[one.cell][1].policy)


@contextlib.contextmanager
def _kept_when_interrupted(maker: SessionMaker, outcome: str, say: Say) -> Iterator[None]:
    """An interrupt says what is left. The next call begins anew: sessions of another hour are no replicates."""
    try:
        yield
    except KeyboardInterrupt:
        measured = sum(map(len, maker.folders.values()))
        say(f"interrupted: {outcome}; {measured} measured sessions stay in {maker.evidence.relative_to(ROOT)}")
        raise


def calibration_file(testbed: str) -> Path:
    """Where a testbed's noise on this machine is kept."""
    return ROOT / "results" / testbed / "calibration.json"


def _cells(rows: Sequence[str], testbed: str) -> dict[str, tuple[Place, GatedCell]]:
    catalog = load_catalog()
    config = {"testbed": testbed, "engine": "default", "rows": list(rows), "sessions": 1, "seed": 0,
              "on_failure": "record"}  # fmt: skip
    return gated_cells(catalog, Selection(config, catalog))


def _amount(cells: Sequence[GatedCell], sides: int) -> str:
    least, most = (
        sum(sides * getattr(cell.policy, name) for cell in cells) for name in ("min_sessions", "max_sessions")
    )
    return f"{len(cells)} cell{'s' * (len(cells) > 1)}: {least} to {most} sessions, and more to confirm a loss"


def _refuse_uncalibrated(testbed: str, cells: dict[str, tuple[Place, GatedCell]], say: Say) -> None:
    known = {(one.cell, one.metric): one for one in calibration.load(calibration_file(testbed))}
    for name, (_, cell) in cells.items():
        if one := known.get((name, cell.metric)):
            calibration.check(one, cell.policy)
    unknown = [f"{name} {cell.metric}" for name, (_, cell) in cells.items() if (name, cell.metric) not in known]
    if unknown:
        which = f"{', '.join(unknown[:2])}{f' and {len(unknown) - 2} more' * (len(unknown) > 2)}"
        say(f"never calibrated here: {which}; np1d calibrate tells what this machine can uphold")


def _prepare(
    request: GateRequest, cells: dict[str, tuple[Place, GatedCell]], maker: SessionMaker
) -> dict[str, list[Path]]:
    if request.base:
        for _, cell in cells.values():
            cell.is_paired = True
        return {}
    assert request.store is not None
    first = existing_sessions(request.testbed, cells) if request.existing else {}
    if not request.existing:
        for name, (_, cell) in cells.items():
            try:
                cell.candidate.append(maker(cell, "candidate"))
            except InvalidSessionError as error:
                cell.invalid = str(error)
            first[name] = maker.folders[f"candidate {name}"][0]
    load_baselines(cells, request.store, first)
    return {name: [folder] for name, folder in first.items()} if request.existing else {}


def _calibrate_cell(name: str, cell: GatedCell, maker: SessionMaker, sessions: int) -> calibration.Calibration:
    try:
        values = [maker(cell, "candidate") for _ in range(sessions)]
    except InvalidSessionError as error:
        raise WorkflowError(f"{name} cannot be calibrated: {error}") from None
    passes = [baselines.entry(folder, cell.metric)["passes"] for folder in maker.folders[f"candidate {name}"]]
    return calibration.calibrate(name, cell.metric, values, passes)


def _run_name() -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime())
