"""`np1d gate` and `np1d calibrate`: from selected rows to verdicts, files and an exit code."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from workflows import baselines, calibration
from workflows.catalog import load_catalog
from workflows.doctor import require_gpus
from workflows.errors import WorkflowError
from workflows.gate import EXIT_CODES, GatedCell, InvalidSessionError, add, run_gate
from workflows.gate_report import as_markdown, write_all
from workflows.gating import (
    ROOT,
    Place,
    SessionMaker,
    check_takes_turns,
    checkout_base,
    existing_sessions,
    gated_cells,
    load_baselines,
    update_store,
)
from workflows.provenance import code, machine
from workflows.schema import PairRules
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
    if request.base and request.existing:
        raise WorkflowError("--existing compares sessions that are there with a store: give --store FOLDER, no --base")
    if request.update and not request.store:
        raise WorkflowError("--update adds to a store: give --store FOLDER with it")
    if request.store and not request.store.is_dir() and not request.update:
        raise WorkflowError(f"there is no store {request.store}; --update begins one, and --base COMMIT needs none")
    try:
        request.out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorkflowError(f"--out {request.out}: {error.strerror}; name another folder") from None
    if not request.existing:
        require_gpus(load_catalog(), request.testbed)
    cells = _cells(request.rows, request.testbed)
    base = checkout_base(request.base) if request.base else None
    pairs = _pairs(request.testbed) if base else None
    if base and pairs:
        check_takes_turns(base)
    for _, cell in cells.values():
        cell.is_paired, cell.how = base is not None, _how(pairs, is_in_turn=base is not None)
    _heed_noise(request.testbed, cells, is_paired=pairs is not None, say=say)
    maker = _maker(cells, base, pairs, say)
    if not request.existing:
        say(_amount([cell for _, cell in cells.values()], pairs, sides=2 if base else 1))
    with _kept_when_interrupted(maker, "no verdict", say):
        folders = _prepare(request, cells, maker, say)
        verdict = run_gate([cell for _, cell in cells.values()], None if request.existing else maker)
    facts = {
        "testbed": request.testbed,
        "baseline": f"{request.base} ({base.name})" if base else "store",
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


def calibrate(rows: tuple[str, ...], testbed: str, count: int, say: Say, *, for_store: bool = False) -> None:
    """Measure each cell again and again, save its noise, and refuse thresholds below it. Raises WorkflowError.

    In pairs of this commit with itself where a gate against a base commit measures pairs, unless it is `for_store`.
    """
    require_gpus(load_catalog(), testbed)
    cells = _cells(rows, testbed)
    pairs = None if for_store else _pairs(testbed)
    maker = _maker(cells, None, pairs, say)
    say(f"{count} {_replicates(pairs)} of {', '.join(cells)}")
    with _kept_when_interrupted(maker, "nothing was calibrated", say):
        found = [_calibrate_cell(name, cell, maker, count, pairs, say) for name, (_, cell) in cells.items()]
    path = calibration_file(testbed)
    known = {old.kind: old for old in calibration.load(path)} | {new.kind: new for new in found}
    calibration.save(path, list(known.values()))
    for one in found:
        say(one.sentence(cells[one.cell][1].policy))
    for one in found:
        calibration.upheld(one, cells[one.cell][1].policy)


def _maker(
    cells: dict[str, tuple[Place, GatedCell]], base: Path | None, pairs: PairRules | None, say: Say
) -> SessionMaker:
    places = {name: place for name, (place, _) in cells.items()}
    return SessionMaker(places, _run_name(), base=base, pairs=pairs, say=say)


def _pairs(testbed: str) -> PairRules | None:
    return load_catalog().testbed(testbed).pairs


def _how(pairs: PairRules | None, *, is_in_turn: bool) -> str:
    if pairs:
        return f"in pairs, both engines up at once and {pairs.passes} passes each in turn, ABBA"
    return "whole sessions in turn, ABBA" if is_in_turn else "sessions alone, against a store"


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


def _amount(cells: Sequence[GatedCell], pairs: PairRules | None, sides: int) -> str:
    each = 1 if pairs else sides
    least, most = (
        sum(each * getattr(cell.policy, name) for cell in cells) for name in ("min_sessions", "max_sessions")
    )
    number = f"{len(cells)} cell{'s' * (len(cells) > 1)}: {least} to {most}"
    return f"{number} {_replicates(pairs)}, and more to confirm a loss"


def _replicates(pairs: PairRules | None) -> str:
    return f"pairs of sessions, {2 * pairs.passes} turns each" if pairs else "sessions"


def _heed_noise(testbed: str, cells: dict[str, tuple[Place, GatedCell]], *, is_paired: bool, say: Say) -> None:
    """As many sessions or pairs at least as the calibrated noise asks for. Raises WorkflowError where none suffice."""
    known = {one.kind: one for one in calibration.load(calibration_file(testbed))}
    for name, (_, cell) in cells.items():
        if one := known.get((name, cell.metric, is_paired)):
            cell.policy = calibration.upheld(one, cell.policy)
    unknown = [
        f"{name} {cell.metric}" for name, (_, cell) in cells.items() if (name, cell.metric, is_paired) not in known
    ]
    if unknown:
        which = f"{', '.join(unknown[:2])}{f' and {len(unknown) - 2} more' * (len(unknown) > 2)}"
        command = "np1d calibrate" + " --for-store" * (not is_paired and _pairs(testbed) is not None)
        say(f"never calibrated here: {which}; {command} tells what this machine can uphold")


def _prepare(
    request: GateRequest, cells: dict[str, tuple[Place, GatedCell]], maker: SessionMaker, say: Say
) -> dict[str, list[Path]]:
    if request.base:
        return {}
    assert request.store is not None
    existing = existing_sessions(request.testbed, cells, say) if request.existing else {}
    first = {name: folders[0] for name, folders in existing.items()}
    if not request.existing:
        for name, (_, cell) in cells.items():
            try:
                cell.candidate.append(maker(cell, ("candidate",))["candidate"])
            except InvalidSessionError as error:
                cell.invalid = str(error)
            first[name] = maker.folders[f"candidate {name}"][0]
    load_baselines(cells, request.store, first)
    return existing


SPARE = 2
"""Invalid sessions or pairs of a cell that a calibration measures again before it gives up."""


def _calibrate_cell(
    name: str, cell: GatedCell, maker: SessionMaker, count: int, pairs: PairRules | None, say: Say
) -> calibration.Calibration:
    cell.is_paired = pairs is not None
    spare = SPARE
    while len(cell.candidate) < count:
        kept = {side: list(folders) for side, folders in maker.folders.items()}
        try:
            add(cell, maker)
        except InvalidSessionError as error:
            if not spare:
                measured = f"{len(cell.candidate)} of {count} were valid"
                raise WorkflowError(f"{name} cannot be calibrated: {error}; {measured}") from None
            spare -= 1
            maker.folders = kept
            say(f"measured once more: {error}")
    passes = [baselines.entry(folder, cell.metric)["passes"] for folder in maker.folders[f"candidate {name}"]]
    values = cell.ratios if pairs else cell.candidate
    return calibration.calibrate(name, cell.metric, values, passes, is_paired=cell.is_paired)


def _run_name() -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime())
