"""Results that are to be measured again, that no row asks for any more, or that come from another machine."""

import filecmp
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reports.json_files import is_session, json_of
from workflows import measure
from workflows.catalog import Catalog, nearest
from workflows.errors import CatalogError, WorkflowError
from workflows.identity import measured_code
from workflows.overview import Outcome, outcomes, outcomes_of_cell
from workflows.plan import Plan, difference, read_plan
from workflows.planner import plan_session
from workflows.standing import newer_words, place, take_away
from workloads.files import read_json
from workloads.metrics import METRICS_FILE

NOT_TESTBEDS = ("serve", "gate")
"""Folders under `results/` that hold no cells of the tables."""
IMPORTED = ("plan.json", "status.json", "provenance.json", "client.json", "requests.parquet", "chunks.parquet",
            "engine.jsonl", "gpu.jsonl", "operating_point.json")  # fmt: skip

Ended = tuple[Path, Plan, dict[str, Any]]
"""A session's folder, plan and status."""


def failed(results: Path) -> list[Outcome]:
    """Sessions that are no valid result, or whose newest attempt is none; not those that lack their metrics alone,
    which the next run or report computes."""
    return [outcome for outcome in outcomes(results) if not outcome.is_good and not outcome.lacks_metrics]


def of_testbed(found: list[Outcome], testbed: str, catalog: Catalog) -> list[Outcome]:
    """Those of a testbed, named as `--testbed` or as its folder under `results/`. Raises CatalogError for neither."""
    folders = {name for engine in catalog.engines for name in (f"{one}_{engine}" for one in catalog.testbeds)}
    if testbed not in folders:
        catalog.testbed(testbed)
    return [outcome for outcome in found if testbed in (outcome.testbed, outcome.cell.get("testbed"))]


def forget(found: list[Outcome]) -> None:
    """Take away the verdict files of these sessions, so that the next run measures them again; attempts stay."""
    for outcome in found:
        take_away(outcome.folder)


def orphans(results: Path, catalog: Catalog) -> Iterator[Path]:
    """Folders of sessions whose row or workload is no longer in the catalogue."""
    for path in sorted(results.glob("*/*/*/*/s*")):
        suite, row, workload = path.parts[-4:-1]
        if not path.is_dir() or not is_session(path) or path.parts[-5] in NOT_TESTBEDS:
            continue
        entry = catalog.rows.get(f"{suite}/{row}")
        if entry is None or workload not in entry.known_workloads:
            yield path


def remove(folders: list[Path], results: Path) -> None:
    """Delete these session folders and the empty folders above them."""
    for folder in folders:
        shutil.rmtree(folder)
        for parent in folder.parents:
            if parent == results or any(parent.iterdir()):
                break
            parent.rmdir()


def take_in(source: Path, results: Path) -> list[Path]:
    """Copy sessions of another machine into `results`, each under the next free number of its cell.

    Raises WorkflowError when a folder is no session; a session that is there already is left out.
    """
    return copy_in(read_sessions(source), results)


def read_sessions(source: Path) -> list[Ended]:
    """Every session at or below a folder, before anything is copied. Raises WorkflowError where one is none."""
    if source.is_file():
        raise WorkflowError(f"{source} is a file; give the folder of a session, or one above several")
    if not source.is_dir():
        raise WorkflowError(f"there is no folder {source}")
    sessions = [path.parent for path in sorted(source.rglob("status.json")) if "attempts" not in path.parts]
    if not sessions:
        raise WorkflowError(f"{source} holds no session (a folder with plan.json and status.json)")
    return [(session, *_read_one(session)) for session in sessions]


def unended(source: Path) -> list[Path]:
    """Folders below (or at) `source` with a plan and no status: sessions that did not end, or a cut archive."""
    plans = (path.parent for path in sorted(source.rglob("plan.json")) if "attempts" not in path.parts)
    return [folder for folder in plans if not (folder / "status.json").exists()]


def copy_in(sessions: list[Ended], results: Path) -> list[Path]:
    """Copy what `read_sessions` read, each under the next free number of its cell, unless it is there already. One that
    differs from a copy that is there takes its place if that copy is not valid."""
    return [target for one in sessions if (target := _take_one(*one, results)) is not None]


def _read_one(session: Path) -> tuple[Plan, dict[str, Any]]:
    try:
        plan, status = read_plan(session / "plan.json"), read_json(session / "status.json")
        key, _ = status["key"], status["started_unix_s"]
    except WorkflowError as error:
        raise WorkflowError(f"{error}; nothing was taken in: leave {session} out") from None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise WorkflowError(f"{session} is cut or changed ({error}); nothing was taken in: leave it out") from error
    if key != plan.key:
        raise WorkflowError(f"{session}: status.json belongs to another plan than plan.json; nothing was taken in")
    return plan, status


def _take_one(session: Path, plan: Plan, status: dict[str, Any], results: Path) -> Path | None:
    cell = results / Path(plan.cell.folder).parent
    for other in cell.glob("s*/status.json"):
        known = json_of(other)  # one that is cut short is not this one
        if (known.get("started_unix_s"), known.get("key")) == (status["started_unix_s"], status["key"]):
            if _is_valid(other.parent) or _is_copy(session, other.parent):
                return None
            target = other.parent
            shutil.rmtree(target)
            break
    else:
        numbers = [int(folder.name[1:]) for folder in cell.glob("s*") if is_session(folder)]
        target = cell / f"s{max(numbers, default=-1) + 1}"
    number = str(status.get("attempt", ""))
    attempt = target / "attempts" / (number if number.isdigit() else "0001")  # where a later attempt finds it
    attempt.mkdir(parents=True)
    for name in IMPORTED:
        if (session / name).exists():
            shutil.copy2(session / name, attempt / name)
            place(attempt / name, target / name)
    return target


def _is_valid(folder: Path) -> bool:
    validity = json_of(folder / METRICS_FILE).get("validity")
    return isinstance(validity, dict) and validity.get("verdict") == "VALID"


def _is_copy(session: Path, other: Path) -> bool:
    """Whether both hold the same records, byte for byte."""
    names = [name for name in IMPORTED if (session / name).exists() or (other / name).exists()]
    _, different, lacking = filecmp.cmpfiles(session, other, names, shallow=False)
    return not different and not lacking


def measure_missing(folder: Path) -> None:
    """Metrics from the records of every session below (or at) `folder` that has none, a line each on stderr."""
    for status in sorted(folder.rglob("status.json")):
        if "attempts" not in status.parts and not (status.parent / METRICS_FILE).exists():
            measure.main([str(status.parent)])


def session_folder(cell: str, testbed: str, results: Path, catalog: Catalog) -> Path:
    """Folder of a session that is named by its folder, or as `locate` takes it. Raises WorkflowError for neither."""
    folder = next((path for path in (Path(cell), results.parent / cell) if path.exists()), Path(cell))
    if folder.is_file():
        raise WorkflowError(f"{cell} is a file; name the session's folder, {folder.parent}")
    if not folder.is_dir():
        return locate(cell, testbed, results, catalog)
    if not (folder / "plan.json").exists():
        raise WorkflowError(f"{cell} is no session's folder; those end in /s0, /s1 and so on")
    return folder


def locate(cell: str, testbed: str, results: Path, catalog: Catalog) -> Path:
    """Folder of the session meant by `suite/row[/workload[/s<k>]]`. Raises CatalogError for unknown names."""
    suite, _, rest = cell.strip("/").partition("/")
    row, _, rest = rest.partition("/")
    workload, _, session = rest.partition("/")
    catalog.testbed(testbed.removesuffix("_sglang"))
    entry = catalog.row(f"{suite}/{row}" if row else suite)
    known = entry.known_workloads
    chosen = workload or next(iter(known), "")
    if chosen not in known:
        raise CatalogError(f"{entry.name} has no workload {chosen}{nearest(chosen, known)}")
    if session and not (session[0] == "s" and session[1:].isdigit()):
        raise WorkflowError(f"{session} is no session; they are called s0, s1 and so on")
    return results / testbed / entry.suite_id / entry.row.id / chosen / (session or "s0")


def why(folder: Path, catalog: Catalog) -> list[str]:
    """Reasons why this session would be measured again now; empty when it would not."""
    if not (folder / "status.json").exists():
        return ["it has not been measured yet"]
    try:
        old = read_plan(folder / "plan.json")
        status = read_json(folder / "status.json")
    except WorkflowError as error:
        return [str(error)]
    except ValueError:
        return ["status.json is cut short; `np1d rerun --failed` measures it again"]
    name = f"{old.cell.suite}/{old.cell.row}"
    testbed = old.cell.testbed.removesuffix(f"_{old.cell.engine}")
    new = plan_session(name, old.cell.workload, testbed_id=testbed, session=old.cell.session, engine=old.cell.engine,
                       catalog=catalog)  # fmt: skip
    reasons = [f"setting {line}" for line in difference(_measured(old), _measured(new))]
    if status["status"] != "ok":
        reasons.append(f"it failed ({status['kind']}: {status['reason']}); `np1d rerun --failed` measures it again")
    if status.get("newer"):
        reasons.append(f"{newer_words(status['newer'])}; `np1d rerun --failed` measures it again")
    code = status.get("measured_code")
    now = measured_code(old.cell.engine, catalog.testbed(testbed).platform)
    if code != now:
        reasons.append(f"the code it ran has changed ({code or 'not recorded'} -> {now})")
    here = [one for one in outcomes_of_cell(folder.parent) if one.folder == folder]
    reasons += [f"it is {one.superseded}" for one in here if one.superseded and not reasons]
    return reasons


def _measured(plan: Plan) -> dict[str, object]:
    body = plan.to_json()
    return {
        key: body[key] for key in ("settings", "processes", "client", "limits", "labels", "measure_version", "model")
    }
