"""Measures what the gate and the calibration ask for, against a baseline store or against a base commit.

With a base commit a second checkout is made under `.cache/base`, and both sides run in turn on this machine, ABBA: pass
by pass with both engines up where the testbed says so (`pairs`), else session by session. The candidate's definitions
of metrics and validity judge both. Every session lies under `results/gate/` with its evidence.
"""

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from reports.counted import counted
from workflows import baselines
from workflows.catalog import Catalog, load_catalog
from workflows.errors import WorkflowError
from workflows.gate import GatedCell, InvalidSessionError, Side
from workflows.identity import measured_code
from workflows.measure import measure
from workflows.overview import outcomes_of_cell
from workflows.pairing import Half, different_load, run_pair
from workflows.plan import read_plan
from workflows.provenance import code
from workflows.schema import PairRules
from workflows.targets import Selection
from workloads.files import read_json

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "results" / "gate"


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A cell of the gate: where its sessions are planned."""

    testbed: str
    row: str
    workload: str

    @property
    def name(self) -> str:
        """As a person writes it; also the name in the store."""
        return f"{self.row}/{self.workload}"


def gated_cells(catalog: Catalog, selection: Selection) -> dict[str, tuple[Place, GatedCell]]:
    """Every selected cell of a suite that has a gate policy. Raises WorkflowError when there is none."""
    found = {}
    policies = catalog.config.gate.get(selection.testbed, catalog.config.gate.get("default", {}))
    for entry in selection.runnable:
        for metric, policy in policies.get(entry.suite_id, {}).items():
            for workload in entry.workloads:
                place = Place(selection.testbed, entry.name, workload)
                found[place.name] = (place, GatedCell(place.name, metric, policy))
    if not found:
        raise WorkflowError("none of these rows has a gate policy in workflows/config/config.yaml")
    return found


class SessionMaker:
    """Runs fresh sessions of either side, each in a folder of its own."""

    def __init__(
        self,
        places: dict[str, Place],
        run: str,
        *,
        base: Path | None,
        say: Callable[[str], None],
        pairs: PairRules | None = None,
    ) -> None:
        """With `pairs`, two sides that are asked for together take turns; without a `base` they are the same commit."""
        self._places = places
        self._run = run
        self.evidence = WORK / run
        self._checkouts: dict[Side, Path] = {"candidate": ROOT, "baseline": base or ROOT}
        ours = _commit_words()
        self._commits: dict[Side, str] = {"candidate": ours, "baseline": base.name if base else ours}
        self._pairs = pairs
        self._say = say
        self.folders: dict[str, list[Path]] = {}
        """Sessions by side and cell, in order."""

    def __call__(self, cell: GatedCell, sides: Sequence[Side]) -> dict[Side, float]:
        """One more session of each side. Raises InvalidSessionError when one is no result."""
        if self._pairs and len(sides) == 2:
            return self._pair(cell, sides, self._pairs)
        return {side: self._alone(cell, side) for side in sides}

    def _alone(self, cell: GatedCell, side: Side) -> float:
        folder = self._plan(cell, side)
        self._call(self._checkouts[side], "workflows.session", str(folder / "plan.json"), str(folder),
                   "--on-failure", "record")  # fmt: skip
        measure(folder)
        return self._value(cell, side, folder)

    def _pair(self, cell: GatedCell, sides: Sequence[Side], rules: PairRules) -> dict[Side, float]:
        first, second = sides
        others = {first: second, second: first}
        folders = {side: self._plan(cell, side, other=self._commits[others[side]]) for side in sides}
        halves: dict[str, Half] = {
            side: Half(read_plan(f / "plan.json"), self._checkouts[side], f) for side, f in folders.items()
        }
        if reason := different_load(halves):
            raise InvalidSessionError(reason)
        run_pair(halves, max_pass_s=rules.max_pass_s)
        for folder in folders.values():
            measure(folder)
        in_order = sorted(sides, key=lambda side: _was_left(folders[side]))  # the cause before its consequence
        values = {side: self._value(cell, side, folders[side]) for side in in_order}
        self._say(f"ratio {cell.name}: {values['candidate'] / values['baseline']:.4f}")
        return values

    def _plan(self, cell: GatedCell, side: Side, other: str | None = None) -> Path:
        """The folder of one more session, with its plan in it; `other` is what it takes turns with."""
        place = self._places[cell.name]
        parent = WORK / self._run / side / place.row / place.workload
        number = len(list(parent.glob("s*"))) if parent.is_dir() else 0
        folder = parent / f"s{number}"
        folder.mkdir(parents=True)
        turns = () if other is None else ("--side", side, "--other", other)
        self._call(self._checkouts[side], "workflows.plan", "--testbed", place.testbed, "--row", place.row,
                   "--workload", place.workload, "--session", str(number), *turns,
                   "--out", str(folder / "plan.json"))  # fmt: skip
        return folder

    def _value(self, cell: GatedCell, side: Side, folder: Path) -> float:
        self.folders.setdefault(f"{side} {cell.name}", []).append(folder)
        try:
            value = float(baselines.entry(folder, cell.metric)["value"])
        except WorkflowError as error:
            raise InvalidSessionError(f"{side}, {folder.relative_to(ROOT)}: {error}") from None
        self._say(f"{side} {cell.name}: {cell.metric} = {value:.4g}")
        return value

    def _call(self, checkout: Path, module: str, *arguments: str) -> None:
        process = subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=checkout)
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.wait()  # it was interrupted too, and ends its servers
            raise
        if code == 130:
            raise KeyboardInterrupt
        if code:
            raise WorkflowError(f"python -m {module} ended with code {code} in {checkout.name}; its words are above")


def _was_left(folder: Path) -> bool:
    """Whether a session ended because the other one of its pair had."""
    return bool(read_json(folder / "status.json")["kind"] == "pair_ended")


def _commit_words() -> str:
    """What is checked out here, in words that hold on every machine."""
    found = code()
    return f"{str(found['commit'])[:12]}{' with changes' if found['diff_files'] else ''}"


def check_takes_turns(base: Path) -> None:
    """Raises WorkflowError for a checkout whose load client is older than pairs."""
    if not (base / "workloads" / "baton.py").exists():
        raise WorkflowError(
            f"{base.name} is older than measuring in turn, so its load client cannot wait for ours; take a later --base"
        )


def checkout_base(commit: str) -> Path:
    """A second checkout of this repository at `commit`. Raises WorkflowError for an unknown one."""
    try:
        full = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    except WorkflowError:
        raise WorkflowError(
            f"{commit} is no commit, branch or tag of this repository; `git log --oneline` and `git branch --all` show "
            "what there is, and `git fetch` brings what is elsewhere"
        ) from None
    folder = ROOT / ".cache" / "base" / full[:12]
    if not (folder / "workflows").is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _git("worktree", "prune")
        _git("worktree", "add", "--detach", "--force", str(folder), full)
    if not (folder / ".cache").exists() and (ROOT / ".cache" / "checkpoints").is_dir():
        (folder / ".cache").mkdir()
        (folder / ".cache" / "checkpoints").symlink_to(ROOT / ".cache" / "checkpoints")
    return folder


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise WorkflowError(f"git {arguments[0]} failed: {said[-1]}")
    return done.stdout.strip()


def load_baselines(cells: dict[str, tuple[Place, GatedCell]], store: Path, first: dict[str, Path]) -> None:
    """Fill the baselines from a store; `first` names one measured session of each cell, whose key must fit."""
    for name, (_, cell) in cells.items():
        if name not in first:
            continue
        try:
            key = baselines.entry(first[name], cell.metric)["key"]
        except WorkflowError:
            continue  # an invalid session makes its cell INVALID by itself
        found = baselines.load(store, name, key, cell.metric)
        cell.baseline = [float(line["value"]) for line in found]
        if len(found) < 2:
            cell.note = f"the store {store.name} has {len(found)} comparable sessions and 2 are needed"


def existing_sessions(
    testbed: str, cells: dict[str, tuple[Place, GatedCell]], say: Callable[[str], None]
) -> dict[str, list[Path]]:
    """Take the sessions that were measured already as candidates; returns their folders by cell.

    Only those of this commit's code are candidates, and of these only those with the newest one's settings.
    """
    platform = load_catalog().testbed(testbed).platform
    taken: dict[str, list[Path]] = {}
    for name, (place, cell) in cells.items():
        ended = outcomes_of_cell(ROOT / "results" / testbed / place.row / place.workload)
        ours = [one for one in ended if one.what_ran[1] == measured_code(str(one.cell.get("engine")), platform)]
        sessions = counted(ours)
        if left := len(ended) - len(sessions):
            say(f"{name}: {left} of {len(ended)} sessions ran other code or settings and are no candidates")
        for folder in (session.folder for session in sessions):
            taken.setdefault(name, []).append(folder)
            try:
                cell.candidate.append(float(baselines.entry(folder, cell.metric)["value"]))
            except WorkflowError as error:
                cell.invalid = cell.invalid or str(error)
    return taken


def update_store(cells: dict[str, tuple[Place, GatedCell]], folders: dict[str, list[Path]], store: Path) -> int:
    """Add the candidates' valid sessions of cells that did not fail; returns how many were added."""
    added = 0
    for name, (_, cell) in cells.items():
        if cell.verdict in ("PASS", "INCONCLUSIVE") and not cell.invalid:
            entries = [baselines.entry(folder, cell.metric) for folder in folders.get(name, [])]
            added += baselines.add(store, name, entries)
    return added
