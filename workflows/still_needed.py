"""Which of the selected sessions have ended and still do not count as what was asked for, and why.

Asked for is a session of today's code and settings. Snakemake knows only what it ran itself: of a session that was
taken in from elsewhere, or copied, it sees that the files are there. The report counts the newest code alone
(`reports.counted`), so a session of other code is no session of the number that a user asks for.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reports.counted import counted, what_ran
from workflows.errors import WorkflowError
from workflows.overview import Outcome, differs, outcomes_of_cell
from workflows.plan import read_plan
from workflows.targets import Selection
from workloads.files import read_json


def uncounted(selection: Selection, results: Path) -> dict[str, str]:
    """Folder of each such session -> why it does not count, as the second half of a sentence."""
    cells: dict[str, list[str]] = {}
    for folder in selection.folders:
        cells.setdefault(folder.rpartition("/")[0], []).append(folder)
    reasons: dict[str, str] = {}
    for cell, folders in cells.items():
        reasons |= _of_cell(selection, results / cell, folders)
    return reasons


def outdated_plans(selection: Selection, results: Path) -> list[str]:
    """Folders of selected sessions that have not ended and whose plan, of elsewhere or of earlier, is another now."""
    return [folder for folder in selection.folders if _is_outdated(results / folder, selection.what_runs(folder)[0])]


def _is_outdated(session: Path, key: str | None) -> bool:
    plan = session / "plan.json"
    if (session / "status.json").exists() or not plan.exists():
        return False
    try:
        return read_plan(plan).key != key
    except WorkflowError:
        return True


def _of_cell(selection: Selection, cell: Path, folders: list[str]) -> dict[str, str]:
    today = selection.what_runs(folders[0])
    ended = {outcome.folder.name: outcome for outcome in outcomes_of_cell(cell)}
    reasons = {
        folder: f"it ran other {differs(outcome.what_ran, today)}" if outcome.status else outcome.reason
        for folder in folders
        if (outcome := ended.get(_name(folder))) and today not in (outcome.what_ran, _newest_try(outcome))
    }
    if reasons or not all(_name(folder) in ended for folder in folders):
        return reasons  # what is measured now is the newest, and brings the others of its code into the report
    return _hidden(ended.values(), {_name(folder): folder for folder in folders})


def _hidden(ended: Iterable[Outcome], asked: dict[str, str]) -> dict[str, str]:
    """One session of today's code to measure again where the report counts newer ones of other code."""
    valid = [outcome for outcome in ended if outcome.verdict == "VALID"]
    shown = {outcome.folder.name for outcome in counted(valid)}
    hidden = [outcome for outcome in valid if outcome.folder.name in asked and not outcome.newer]
    if not hidden or any(outcome.folder.name in shown for outcome in hidden):
        return {}
    last = hidden[-1]
    return {asked[last.folder.name]: f"it is {last.superseded}"}


def _newest_try(outcome: Outcome) -> tuple[str | None, str | None] | None:
    """What a newer attempt ran that is no result: it is measured again when the user says so."""
    newer: dict[str, Any] = outcome.status.get("newer") or {}
    try:
        return what_ran(read_json(outcome.folder / "attempts" / str(newer.get("attempt", "")) / "status.json"))
    except (OSError, ValueError):
        return None


def _name(folder: str) -> str:
    return folder.rpartition("/")[2]
