"""Results are taken in, forgotten, pruned and explained without losing a finished one."""

import json
from pathlib import Path

import pytest

from reports.json_files import sealed
from reports.results import load_results
from tests.support.session_folder import session
from workflows import housekeeping
from workflows.catalog import load_catalog
from workflows.errors import WorkflowError
from workflows.overview import outcomes
from workflows.plan import Plan
from workflows.planner import plan_session
from workflows.standing import finished
from workloads.files import read_json, write_json


@pytest.fixture
def plan() -> Plan:
    return plan_session("decode/baseline", "sp99_9", testbed_id="cpu")


def test_imported_sessions_add_up_under_free_numbers(tmp_path: Path, plan: Plan) -> None:
    results = tmp_path / "results"
    session(results / plan.cell.folder, plan, started=1.0)
    for day in (2.0, 3.0):
        session(tmp_path / "other" / str(day), plan, started=day)
    taken = housekeeping.take_in(tmp_path / "other", results)
    assert [folder.name for folder in taken] == ["s1", "s2"]
    assert (taken[0] / "requests.parquet").exists()
    assert [attempt.name for attempt in finished(taken[0])] == ["0001"], "a failed attempt here would not replace it"


def test_sessions_that_were_taken_in_get_their_metrics_whatever_their_records_are(tmp_path: Path, plan: Plan) -> None:
    session(tmp_path / "other", plan)
    (folder,) = housekeeping.take_in(tmp_path / "other", tmp_path / "results")
    assert not (folder / "metrics.json").exists()
    housekeeping.measure_missing(tmp_path / "results")
    body = read_json(folder / "metrics.json")
    assert body["validity"]["verdict"] == "INVALID", "these records are no Parquet file, and that is said"
    assert "cannot be read" in body["validity"]["reasons"][0]


def test_importing_twice_takes_nothing_twice(tmp_path: Path, plan: Plan) -> None:
    session(tmp_path / "other", plan)
    assert len(housekeeping.take_in(tmp_path / "other", tmp_path / "results")) == 1
    assert housekeeping.take_in(tmp_path / "other", tmp_path / "results") == []


def test_a_better_copy_takes_the_place_of_one_that_is_not_valid_and_only_then(tmp_path: Path, plan: Plan) -> None:
    good, results = session(tmp_path / "good", plan), tmp_path / "results"
    bad = session(tmp_path / "bad", plan)
    (good / "requests.parquet").write_bytes(b"whole")
    (bad / "requests.parquet").write_bytes(b"cut")
    (folder,) = housekeeping.take_in(tmp_path / "bad", results)
    housekeeping.measure_missing(folder)
    assert housekeeping.take_in(tmp_path / "bad", results) == []
    assert housekeeping.take_in(tmp_path / "good", results) == [folder]
    assert (folder / "requests.parquet").read_bytes() == b"whole" and not (folder / "metrics.json").exists()
    write_json(folder / "metrics.json", {"validity": {"verdict": "VALID"}})
    assert housekeeping.take_in(tmp_path / "bad", results) == []
    assert (folder / "requests.parquet").read_bytes() == b"whole"


def test_what_has_no_status_is_named(tmp_path: Path, plan: Plan) -> None:
    session(tmp_path / "a", plan)
    cut = session(tmp_path / "b", plan)
    (cut / "status.json").unlink()
    assert housekeeping.unended(tmp_path) == [cut]


def test_one_session_that_is_cut_short_leaves_all_others_outside_too(tmp_path: Path, plan: Plan) -> None:
    session(tmp_path / "other" / "a", plan)
    cut = session(tmp_path / "other" / "b", plan, started=2.0)
    (cut / "status.json").write_text('{"key": ')
    with pytest.raises(WorkflowError, match=r"is cut or changed.*nothing was taken in"):
        housekeeping.take_in(tmp_path / "other", tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_status_of_another_plan_is_refused(tmp_path: Path, plan: Plan) -> None:
    folder = session(tmp_path / "other", plan)
    write_json(folder / "status.json", read_json(folder / "status.json") | {"key": "another"})
    with pytest.raises(WorkflowError, match="belongs to another plan"):
        housekeeping.take_in(tmp_path / "other", tmp_path / "results")


def test_only_sessions_that_are_no_result_are_forgotten(tmp_path: Path, plan: Plan) -> None:
    good = session(tmp_path / "cpu/decode/baseline/sp99_9/s0", plan)
    bad = session(tmp_path / "cpu/decode/baseline/sp99_9/s1", plan, status="failed", verdict="INVALID")
    found = housekeeping.failed(tmp_path)
    assert [outcome.folder for outcome in found] == [bad]
    housekeeping.forget(found)
    assert not (bad / "status.json").exists() and (bad / "requests.parquet").exists()
    assert (good / "status.json").exists()


def test_a_result_that_waits_for_its_metrics_is_no_failed_one(tmp_path: Path, plan: Plan) -> None:
    (session(tmp_path / "cpu/decode/baseline/sp99_9/s0", plan) / "metrics.json").unlink()
    died = session(tmp_path / "cpu/decode/baseline/sp99_9/s1", plan, status="failed")
    (died / "metrics.json").unlink()
    assert [outcome.folder for outcome in housekeeping.failed(tmp_path)] == [died]


def test_a_half_written_status_is_no_result(tmp_path: Path, plan: Plan) -> None:
    folder = session(tmp_path / "cpu/decode/baseline/sp99_9/s0", plan)
    (folder / "status.json").write_text('{"status": "ok"')
    (outcome,) = housekeeping.failed(tmp_path)
    assert outcome.reason == "status.json is cut short; run the session again"


def test_damaged_metrics_are_no_result_and_say_the_way_out(tmp_path: Path, plan: Plan) -> None:
    folder = session(tmp_path / "cpu/decode/baseline/sp99_9/s0", plan)
    whole = sealed(read_json(folder / "metrics.json"))
    for content, words in (
        (json.dumps(whole), ""),
        (json.dumps(whole).replace("10.0", "11.0"), "metrics.json was changed after it was computed; delete it"),
        (json.dumps(whole)[:40], "metrics.json is cut short; delete it"),
    ):
        (folder / "metrics.json").unlink()
        (folder / "metrics.json").write_text(content)
        assert [outcome.reason[: len(words)] for outcome in housekeeping.failed(tmp_path)] == ([words] if words else [])


@pytest.mark.parametrize("name", ["plan.json", "client.json"])
def test_a_result_beside_a_damaged_file_is_none_here_as_in_the_report(tmp_path: Path, plan: Plan, name: str) -> None:
    folder = session(tmp_path / "cpu/decode/baseline/sp99_9/s0", plan)
    (folder / name).write_text('{"cut')
    (outcome,) = housekeeping.failed(tmp_path)
    assert outcome.reason == f"{name} cannot be read; run this session again"


def test_why_tells_a_damaged_session_from_one_that_was_not_measured(tmp_path: Path, plan: Plan) -> None:
    folder = session(tmp_path / "cpu/decode/baseline/sp99_9/s0", plan)
    (folder / "status.json").write_text('{"status": "ok"')
    assert housekeeping.why(folder, load_catalog()) == [
        "status.json is cut short; `np1d rerun --failed` measures it again"
    ]
    (folder / "plan.json").write_text("{")
    assert "is not a plan of this version" in housekeeping.why(folder, load_catalog())[0]


def test_why_refuses_a_folder_that_is_no_session(tmp_path: Path, plan: Plan) -> None:
    folder = session(tmp_path / "cpu/decode/baseline/sp99_9/s0", plan)
    assert housekeeping.session_folder(str(folder), "cpu", tmp_path, load_catalog()) == folder
    assert housekeeping.session_folder("decode/baseline", "cpu", tmp_path, load_catalog()) == folder
    with pytest.raises(WorkflowError, match="is no session's folder; those end in /s0"):
        housekeeping.session_folder(str(folder.parent), "cpu", tmp_path, load_catalog())


def test_results_of_rows_that_are_gone_are_orphans(tmp_path: Path, plan: Plan) -> None:
    kept = session(tmp_path / "cpu/decode/baseline/sp99_9/s0", plan)
    gone = session(tmp_path / "cpu/decode/gone/sp99_9/s0", plan)
    log = tmp_path / "serve/decode_baseline/attempts/0001/session.log"
    log.parent.mkdir(parents=True)
    log.write_text("served")
    assert list(housekeeping.orphans(tmp_path, load_catalog())) == [gone]
    housekeeping.remove([gone], tmp_path)
    assert not (tmp_path / "cpu/decode/gone").exists() and kept.exists()


def test_why_says_nothing_for_a_session_that_is_up_to_date(tmp_path: Path, plan: Plan) -> None:
    assert housekeeping.why(session(tmp_path, plan), load_catalog()) == []


def test_why_names_the_setting_that_changed(tmp_path: Path, plan: Plan) -> None:
    folder = session(tmp_path, plan)
    body = plan.to_json()
    body["settings"]["decode"]["scheduler.extra_inflight"] = 5
    write_json(folder / "plan.json", body)
    assert "setting settings.decode.scheduler.extra_inflight: 5 -> 0" in housekeeping.why(folder, load_catalog())


def test_why_says_that_the_code_changed(tmp_path: Path, plan: Plan) -> None:
    folder = session(tmp_path, plan)
    write_json(folder / "status.json", read_json(folder / "status.json") | {"measured_code": "000000000000"})
    (reason,) = housekeeping.why(folder, load_catalog())
    assert reason.startswith("the code it ran has changed (000000000000 -> ")


def test_why_says_that_a_newer_session_of_other_code_is_counted_instead(tmp_path: Path, plan: Plan) -> None:
    folder = session(tmp_path / "s0", plan)
    session(tmp_path / "s1", plan, started=2.0, code="another")
    assert housekeeping.why(folder, load_catalog()) == ["it is in no number: s1 is newer and ran other code"]


def test_a_copy_of_a_session_under_another_name_is_no_session(tmp_path: Path, plan: Plan) -> None:
    folder = session(tmp_path / "cpu/decode/baseline/sp99_9/s0", plan)
    session(folder.with_name("s0_old"), plan)
    assert [one.folder for one in outcomes(tmp_path)] == [folder]
    assert [one.index for one in load_results(tmp_path / "cpu").sessions] == [0]
    session(tmp_path / "other", plan, started=5.0)
    assert [taken.name for taken in housekeeping.take_in(tmp_path / "other", tmp_path)] == ["s1"]


def test_an_import_never_writes_into_a_session_that_has_not_ended(tmp_path: Path, plan: Plan) -> None:
    (session(tmp_path / "cpu/decode/baseline/sp99_9/s0", plan) / "status.json").unlink()
    session(tmp_path / "other", plan, started=5.0)
    assert [taken.name for taken in housekeeping.take_in(tmp_path / "other", tmp_path)] == ["s1"]


def test_a_plan_of_another_version_leaves_all_others_outside_too(tmp_path: Path, plan: Plan) -> None:
    session(tmp_path / "other" / "a", plan)
    (session(tmp_path / "other" / "b", plan, started=2.0) / "plan.json").write_text("{}")
    with pytest.raises(WorkflowError, match=r"is not a plan of this version: .*; nothing was taken in: leave .*b out"):
        housekeeping.take_in(tmp_path / "other", tmp_path / "results")
    assert not (tmp_path / "results").exists()
