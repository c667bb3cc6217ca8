"""A run counts sessions by the rule of the report: those of today's code and settings alone."""

from pathlib import Path

import pytest

from reports.claims import Cell
from reports.results import load_results
from tests.support.session_folder import session
from workflows.identity import measured_code
from workflows.overview import outcomes
from workflows.plan import Plan
from workflows.planner import plan_session
from workflows.still_needed import outdated_plans, uncounted
from workflows.targets import Selection
from workloads.files import read_json, write_json

CELL = "cpu/decode/baseline/sp99_9"
TODAY = measured_code("stack", "cpu")


@pytest.fixture
def plan() -> Plan:
    return plan_session("decode/baseline", "sp99_9", testbed_id="cpu")


def selection(sessions: int) -> Selection:
    return Selection({"testbed": "cpu", "engine": "default", "rows": ["decode/baseline"], "sessions": sessions,
                      "seed": 0, "on_failure": "record"})  # fmt: skip


def shown(results: Path) -> list[int]:
    """Numbers of the sessions that the report counts."""
    return [one.index for one in load_results(results / "cpu").valid(Cell("decode", "baseline", "sp99_9"))]


def test_a_session_of_other_code_is_not_counted_and_says_why(tmp_path: Path, plan: Plan) -> None:
    session(tmp_path / CELL / "s0", plan, started=1.0, code="another")
    session(tmp_path / CELL / "s1", plan, started=2.0)
    assert shown(tmp_path) == [1]
    assert uncounted(selection(1), tmp_path) == {f"{CELL}/s0": "it ran other code"}
    assert uncounted(selection(3), tmp_path) == {f"{CELL}/s0": "it ran other code"}, "s2 is missing, which is no reason"


def test_a_session_of_other_settings_is_not_counted(tmp_path: Path, plan: Plan) -> None:
    folder = session(tmp_path / CELL / "s0", plan)
    write_json(folder / "status.json", read_json(folder / "status.json") | {"key": "another"})
    assert uncounted(selection(1), tmp_path) == {f"{CELL}/s0": "it ran other settings"}


def test_sessions_of_todays_code_count_wherever_they_ran(tmp_path: Path, plan: Plan) -> None:
    for number in range(3):
        session(tmp_path / CELL / f"s{number}", plan, started=float(number))
    assert uncounted(selection(3), tmp_path) == {}
    assert shown(tmp_path) == [0, 1, 2]


def test_where_a_newer_session_of_other_code_hides_todays_one_of_them_runs_again(tmp_path: Path, plan: Plan) -> None:
    for number in range(2):
        session(tmp_path / CELL / f"s{number}", plan, started=float(number))
    session(tmp_path / CELL / "s2", plan, started=9.0, code="another")
    assert shown(tmp_path) == [2]
    (only,) = uncounted(selection(2), tmp_path).items()
    assert only == (f"{CELL}/s1", "it is in no number: s2 is newer and ran other code")
    assert uncounted(selection(4), tmp_path) == {f"{CELL}/s2": "it ran other code"}, "s3 and s2 become the newest"
    session(tmp_path / CELL / "s1", plan, started=10.0)
    assert (uncounted(selection(2), tmp_path), shown(tmp_path)) == ({}, [0, 1])


def test_a_failure_of_todays_code_waits_for_the_user(tmp_path: Path, plan: Plan) -> None:
    folder = session(tmp_path / CELL / "s0", plan, status="failed", verdict="INVALID")
    assert uncounted(selection(1), tmp_path) == {}
    session(folder, plan, code="another")
    session(folder / "attempts/0002", plan, status="failed")
    write_json(folder / "status.json", read_json(folder / "status.json") | {"newer": {"attempt": "0002"}})
    assert uncounted(selection(1), tmp_path) == {}, "an older result stands, and today's attempt failed"
    session(folder / "attempts/0002", plan, status="failed", code="a third")
    assert uncounted(selection(1), tmp_path) == {f"{CELL}/s0": "it ran other code"}


def test_the_plan_of_a_session_without_a_result_is_written_again_where_it_is_another(
    tmp_path: Path, plan: Plan
) -> None:
    folder = session(tmp_path / CELL / "s0", plan)
    (folder / "status.json").unlink()
    assert outdated_plans(selection(1), tmp_path) == []
    body = plan.to_json()
    body["settings"]["decode"]["scheduler.extra_inflight"] = 5
    write_json(folder / "plan.json", body)
    assert outdated_plans(selection(1), tmp_path) == [f"{CELL}/s0"]


def test_the_list_of_results_says_which_valid_session_is_in_no_number(tmp_path: Path, plan: Plan) -> None:
    session(tmp_path / CELL / "s0", plan, started=1.0, code="another")
    session(tmp_path / CELL / "s1", plan, started=2.0)
    assert [one.superseded for one in outcomes(tmp_path)] == ["in no number: s1 is newer and ran other code", ""]
