"""What keeps sessions of a pair apart from sessions measured alone, and what a pair must be given."""

import subprocess
import sys
from pathlib import Path

import pytest

from workflows import session
from workflows.errors import NotApplicableError
from workflows.pairing import Half, different_load
from workflows.plan import Plan
from workflows.planner import plan_session
from workflows.supervisor import host
from workloads.files import write_json

ROOT = Path(__file__).resolve().parents[2]


def planned(side: str | None = None, other: str = "abc", **changes: int) -> Plan:
    in_turn = {"side": side, "other": other} if side else None
    return plan_session("decode/baseline", "sp99_9", testbed_id="cpu", in_turn=in_turn, **changes)


def test_a_session_of_a_pair_is_not_comparable_with_one_measured_alone() -> None:
    assert len({planned().key, planned("candidate").key, planned("baseline").key, planned("candidate", "def").key}) == 4


def test_a_turn_fills_every_slot_and_sends_nothing_beside() -> None:
    workload = planned("candidate").client.workload
    assert workload["load"] == planned().client.workload["load"] | {"handover": False, "keep_full": False}
    assert (workload["requests_per_pass"], workload["warmup_requests"], workload["continued"]) == (4, 0, True)
    assert workload["limits"] | {"min_concurrency_share": 0} == (
        planned().client.workload["limits"] | {"min_concurrency_share": 0}
    ), "no other rule of validity differs from a session measured alone"


def test_a_testbed_without_pairs_refuses_a_plan_of_one() -> None:
    with pytest.raises(NotApplicableError, match="h200x2 does not say how to measure in turn"):
        plan_session("decode/baseline", "sp99_9_same", testbed_id="h200x2", in_turn={"side": "candidate", "other": ""})


def test_the_same_load_is_the_same_whichever_side_and_another_one_is_named() -> None:
    one, two, more = (
        Half(plan, ROOT, ROOT) for plan in (planned("candidate"), planned("baseline"), planned("baseline", passes=3))
    )
    assert different_load({"candidate": one, "baseline": two}) == ""
    assert "passes: 8 -> 3" in different_load({"candidate": one, "baseline": more})


@pytest.mark.parametrize(
    ("side", "given", "sentence"),
    [
        ("candidate", (), "this plan is measured in turn with another engine: `np1d gate --base COMMIT` runs both"),
        (None, ("--baton", "nowhere", "--lock", "3"), "--baton and --lock are for plans of a pair"),
    ],
    ids=["pair-alone", "alone-in-pair"],
)
def test_a_plan_is_carried_out_as_it_was_meant_or_not_at_all(
    side: str | None, given: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "plan.json", planned(side).to_json())
    assert session.main([str(tmp_path / "plan.json"), str(tmp_path / "out"), *given]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


INHERITED = """
import sys
from pathlib import Path
from workflows.supervisor import host
print(host.inherited(Path(sys.argv[1]), int(sys.argv[2])))
"""


def test_only_the_lock_that_the_pair_holds_lets_its_sessions_measure(tmp_path: Path) -> None:
    def inherited(lock: int) -> str:
        command = [sys.executable, "-c", INHERITED, str(tmp_path), str(lock)]
        return subprocess.run(
            command, cwd=ROOT, pass_fds=[lock], capture_output=True, text=True, check=True
        ).stdout.strip()

    with host.measuring(tmp_path, "pair", wait_s=1, say=print, interrupted=lambda: None) as lock:
        assert inherited(lock) == "True"
        with (tmp_path / "measuring.lock").open() as opened_anew, (tmp_path / "another").open("w") as another:
            assert inherited(opened_anew.fileno()) == "False"
            assert inherited(another.fileno()) == "False"
    assert not host.inherited(tmp_path, 999), "a number that is no open file"
