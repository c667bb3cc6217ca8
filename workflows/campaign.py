"""One `np1d run`: what is selected, what is left to do, Snakemake, and a table of what came out.

Exit code 0: every selected session is a valid result. 1: some are not, or Snakemake failed. 130: interrupted.
"""

import dataclasses
import json
from pathlib import Path

from rich.console import Console

from workflows.catalog import load_catalog
from workflows.doctor import require_gpus
from workflows.errors import WorkflowError
from workflows.overview import Outcome, outcomes, result_table
from workflows.preview import Preview, cell_words, grouped, jobs, session_words
from workflows.runner import PROFILE, dry_run, run_at_work, run_snakemake
from workflows.standing import take_away
from workflows.still_needed import outdated_plans, uncounted
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
        if "/" in self.profile and not (ROOT / self.profile).is_dir():
            raise WorkflowError(f"there is no profile {self.profile}; those of np1d are in workflows/profiles/")
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
            self._preview(selection, out, is_forced=force, with_report=with_report)
            return 0
        if not self.profile:
            require_gpus(selection.catalog, selection.testbed)
        err.print(f"{len(folders)} sessions selected on {selection.testbed}", highlight=False)
        code = run_snakemake(
            self._targets(selection, with_report), self._config(), lambda: _plans_anew(selection, err, force=force),
            profile=self.profile or PROFILE, arguments=("--quiet", "all") if not self.profile else (),
        )  # fmt: skip
        found = [o for o in outcomes(ROOT / "results") if _place(o) in set(folders)]
        if code not in (0, 130) and not found:
            dry_run(self._targets(selection, with_report), self._config(), ())  # raises where nothing could be planned
        if found:
            out.print(result_table(found, selection.catalog))
        return _verdict(code, found, folders, err, force=force)

    def _preview(self, selection: Selection, out: Console, *, is_forced: bool, with_report: bool) -> None:
        results = ROOT / "results"
        whys = (
            dict.fromkeys(selection.folders, "asked for with --force") if is_forced else uncounted(selection, results)
        )
        anew = [_plan_of(folder) for folder in (*whys, *outdated_plans(selection, results))]
        said = dry_run(self._targets(selection, with_report), self._config(), anew)
        log = ROOT / "logs" / selection.folder / "dry_run.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(said, encoding="utf-8")
        preview = Preview(selection.folders, jobs(said), results, whys)
        if holder := run_at_work():
            out.print(
                f"another np1d run (process {holder}) is at work here; what it does is not in this", highlight=False
            )
        if preview.sessions:
            out.print(preview.table())
        for line in preview.lines():
            out.print(line, highlight=False, soft_wrap=True)
        out.print(f"Snakemake's own words: {log.relative_to(ROOT)}", highlight=False, soft_wrap=True, style="dim")

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


def _plans_anew(selection: Selection, err: Console, *, force: bool) -> list[str]:
    """Plans to write again and with them sessions to measure again, after saying which do not count and why."""
    results = ROOT / "results"
    if force:
        for folder in selection.folders:
            take_away(results / folder)
    needed = uncounted(selection, results)
    for folders, why in grouped(needed):
        verb = "does" if len(folders) == 1 else "do"
        sessions = f"{cell_words(folders[0])} {session_words(folders)}"
        err.print(f"{sessions} {verb} not count ({why}): measured again", highlight=False, soft_wrap=True)
    return [_plan_of(folder) for folder in (*needed, *outdated_plans(selection, results))]


def _plan_of(folder: str) -> str:
    return f"results/{folder}/plan.json"


def _place(outcome: Outcome) -> str:
    return outcome.folder.relative_to(ROOT / "results").as_posix()


def _verdict(code: int, found: list[Outcome], folders: list[str], err: Console, *, force: bool) -> int:
    if code == 130:
        kept = f"{len(found)} of {len(folders)} sessions are finished and kept"
        how = "the same command without --force continues" if force else "the same command continues"
        err.print(f"interrupted; {kept}, and {how}", highlight=False)
        return 130
    invalid = [outcome for outcome in found if not outcome.is_good]
    missing = len(folders) - len(found)
    if invalid or missing:
        bad = f"{len(invalid)} of {len(folders)} sessions are no valid result" if invalid else ""
        undone = f"{missing} of {len(folders)} did not run" if missing else ""
        way = "np1d rerun --failed --yes, then the same command, measures again" if invalid else "the same command runs"
        said = " and ".join(filter(None, (bad, undone)))
        err.print(f"{said}; {way} what is missing", highlight=False, soft_wrap=True)
        return 1
    if code:
        err.print(f"the sessions are valid, but Snakemake ended with code {code}; logs/ has its steps", highlight=False)
        return 1
    return 0
