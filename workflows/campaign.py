"""One `np1d run`: what is selected, what is left to do, Snakemake, and a table of what came out.

Exit code 0: every selected session is a valid result. 1: some are not, or Snakemake failed. 130: interrupted.
"""

import dataclasses
import json
from pathlib import Path

from rich.console import Console

from workflows.catalog import load_catalog
from workflows.errors import WorkflowError
from workflows.overview import Outcome, outcomes, result_table
from workflows.provenance import gpu_uuids
from workflows.runner import PROFILE, dry_run, run_snakemake
from workflows.standing import take_away
from workflows.supervisor.devices import check_there
from workflows.targets import Selection

ROOT = Path(__file__).resolve().parent.parent


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A selection of rows and how often to measure them."""

    rows: tuple[str, ...]
    workloads: tuple[str, ...] = ()
    """Empty: each row's own."""
    testbed: str
    engine: str
    sessions: int
    seed: int
    stop: bool
    profile: str

    def run(self, out: Console, err: Console, *, force: bool, is_dry: bool, with_report: bool) -> int:
        """Bring everything selected up to date. Raises WorkflowError for what the user can mend."""
        selection = self._selection()
        folders = selection.folders
        for resolution in selection.resolutions:
            if resolution.status != "runnable":
                err.print(
                    f"{resolution.entry.name}: {resolution.status.replace('_', ' ')}: {resolution.reason}", style="dim"
                )
        if not folders:
            raise WorkflowError(f"nothing of this selection runs on {selection.testbed}; the reasons are above")
        if is_dry:
            out.print(dry_run(self._targets(selection, with_report), self._config()), highlight=False)
            return 0
        if not self.profile:
            _require_gpus(selection)
        if force:
            for folder in folders:
                take_away(ROOT / "results" / folder)
        err.print(f"{len(folders)} sessions selected on {selection.testbed}", highlight=False)
        code = run_snakemake(
            self._targets(selection, with_report), self._config(), profile=self.profile or PROFILE,
            arguments=("--quiet", "all") if not self.profile else (),
        )  # fmt: skip
        found = [o for o in outcomes(ROOT / "results") if _place(o) in set(folders)]
        if code not in (0, 130) and not found:
            dry_run(self._targets(selection, with_report), self._config())  # raises where nothing could be planned
        out.print(result_table(found, selection.catalog))
        return _verdict(code, found, folders, err)

    def _selection(self) -> Selection:
        return Selection(self._values(), load_catalog())

    def _values(self) -> dict[str, object]:
        return {
            "testbed": self.testbed,
            "engine": self.engine,
            "rows": list(self.rows),
            "workloads": list(self.workloads),
            "sessions": self.sessions,
            "seed": self.seed,
            "on_failure": "stop" if self.stop else "record",
        }

    def _config(self) -> list[str]:
        return [
            f"{key}={json.dumps(value) if isinstance(value, list) else value}" for key, value in self._values().items()
        ]

    def _targets(self, selection: Selection, with_report: bool) -> list[str]:
        statuses = [name.replace("metrics.json", "status.json") for name in selection.metrics_files]
        return ["build", *statuses, *selection.metrics_files, *(["report"] if with_report else [])]


def _require_gpus(selection: Selection) -> None:
    """Refuse a GPU testbed on a machine without such GPUs before anything is planned or taken away."""
    if selection.catalog.testbed(selection.testbed).platform != "cuda":
        return
    there = gpu_uuids()
    check_there(there)
    if not there:
        raise WorkflowError(
            f"testbed {selection.testbed} needs NVIDIA GPUs and this machine shows none; use --testbed cpu, or "
            "`np1d plan` here, `python -m workflows.session` on the GPU host, and `np1d import` its results"
        )


def _place(outcome: Outcome) -> str:
    return outcome.folder.relative_to(ROOT / "results").as_posix()


def _verdict(code: int, found: list[Outcome], folders: list[str], err: Console) -> int:
    if code == 130:
        kept = f"{len(found)} of {len(folders)} sessions are finished and kept"
        err.print(f"interrupted; {kept}, and the same command continues", highlight=False)
        return 130
    invalid = [outcome for outcome in found if not outcome.is_good]
    missing = len(folders) - len(found)
    if invalid or missing:
        err.print(
            f"{len(invalid)} of {len(folders)} sessions are no valid result and {missing} did not run; "
            "np1d rerun --failed --yes, then the same command, measures them again",
            highlight=False,
        )
        return 1
    if code:
        err.print(f"the sessions are valid, but Snakemake ended with code {code}; logs/ has its steps", highlight=False)
        return 1
    return 0
