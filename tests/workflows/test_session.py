"""The supervisor with small real processes: what it promises on every way out."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from workflows.attempt import Attempt
from workflows.plan import Cell, ClientPlan, Limits, Plan, ProcessPlan, Ready
from workflows.supervisor import host
from workloads.files import write_json

ROOT = Path(__file__).resolve().parents[2]
SERVER = str(ROOT / "tests/support/scripted_server.py")
CLIENT = str(ROOT / "tests/support/scripted_client.py")


def scripted_plan(*servers: dict[str, Any], client: dict[str, Any] | None = None, ready_s: float = 10.0) -> Plan:
    processes = tuple(
        ProcessPlan(
            name=f"p{i}",
            role="prefill",
            command=("{python}", SERVER, f"{{dir}}/p{i}.json", "--port", f"{{port:p{i}}}"),
            ports=(f"p{i}",),
            files={f"p{i}.json": script},
            ready=Ready(path="/health", healthy_workers=script.get("expected_workers")),
        )
        for i, script in enumerate(servers)
    )
    command = ("{python}", CLIENT, "{dir}/workload.json", "--url", "http://127.0.0.1:{port:p0}", "--out", "{dir}")
    return Plan(
        cell=Cell(testbed="cpu", suite="test", row="row", workload="load", session=0, engine="stack"),
        question="does it hold?",
        metric="output_tok_s",
        expect=None,
        published=None,
        measure_version=1,
        settings={},
        parts=(),
        left_out={},
        labels={},
        conditions={},
        model={},
        processes=processes,
        client=ClientPlan(command=command, url_port="p0", workload={"identity": {}, **(client or {})}),
        limits=Limits(ready_timeout_s=ready_s, deadline_s=20.0, grace_s=1.0, port_base=42000),
    )


class Run:
    """One session in a process of its own, with its own state folder."""

    def __init__(self, folder: Path, plan: Plan, *, name: str = "s0") -> None:
        self.out = folder / name
        self.state = folder / "state"
        plan_path = folder / f"{name}.plan.json"
        write_json(plan_path, plan.to_json())
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.run_session",
                str(plan_path),
                str(self.out),
                str(self.state),
            ],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait(self, timeout: float = 40.0) -> int:
        self.stderr = self.process.communicate(timeout=timeout)[1]
        return self.process.returncode

    def wait_for_line(self, text: str) -> None:
        assert self.process.stderr is not None
        while line := self.process.stderr.readline():
            if text in line:
                return
        raise AssertionError(f"never said {text!r}")

    @property
    def status(self) -> dict[str, Any]:
        return json.loads((self.out / "status.json").read_text())

    def attempt(self, number: int = 1) -> Path:
        return self.out / "attempts" / f"{number:04d}"


def processes_of(folder: Path) -> list[psutil.Process]:
    """Living processes that were started with something in this folder, or by something that was."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if str(folder) in " ".join(process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found += [process, *process.children(recursive=True)]
    return found


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Any:
    before = {process.pid for process in psutil.process_iter()}
    yield
    until = time.monotonic() + 3
    while time.monotonic() < until:
        new = [p for p in psutil.process_iter(["cmdline", "status"]) if p.pid not in before]
        left = [
            p
            for p in new
            if p.info["status"] != psutil.STATUS_ZOMBIE and str(tmp_path) in " ".join(p.info["cmdline"] or [])
        ]
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(f"left alive: {[p.info['cmdline'] for p in left]}")


def test_a_session_leaves_results_and_no_process(tmp_path: Path) -> None:
    run = Run(tmp_path, scripted_plan({"children": 1, "detached": 1}, {}, client={"seconds": 0.3}))
    assert run.wait() == 0, run.stderr
    assert run.status["status"] == "ok"
    assert (run.out / "requests.parquet").read_text() == "whole"
    provenance = json.loads((run.out / "provenance.json").read_text())
    assert provenance["ports_still_open"] == []
    assert provenance["exit_codes"]["client"] == 0
    assert len(provenance["killed"]) == 1, "the child that ignores SIGTERM had to be killed, and nothing else"
    assert "working" in run.stderr


def test_a_server_that_ends_with_code_zero_fails_the_session(tmp_path: Path) -> None:
    run = Run(tmp_path, scripted_plan({}, {"die_after_s": 1.5, "exit_code": 0}, client={"seconds": 8}))
    assert run.wait() == 1
    assert run.status["kind"] == "server_died"
    assert "p1 ended with code 0 while it was measured: the script says: die" in run.status["reason"]
    assert not (run.out / "requests.parquet").exists()
    assert (run.attempt() / "requests.parquet").read_text() == "stopped", "the client was asked to keep what it had"


def test_a_server_that_dies_while_starting_is_named_with_its_last_words(tmp_path: Path) -> None:
    run = Run(
        tmp_path, scripted_plan({"die_after_s": 0.3, "say": "no checkpoint", "ready_after_s": 60, "exit_code": 2})
    )
    assert run.wait() == 1
    assert run.status["reason"] == "p0 ended with code 2 while it was starting: no checkpoint"


def test_a_death_is_said_at_once_with_the_last_lines_and_ends_the_rest_soon(tmp_path: Path) -> None:
    stubborn = {"children": 1}
    plan = scripted_plan(stubborn, {"die_after_s": 1.0, "say": "a page was lost"}, client={"seconds": 60})
    patient = plan.limits.model_copy(update={"grace_s": 20.0})
    run = Run(tmp_path, plan.model_copy(update={"limits": patient}))
    run.wait_for_line("p1 | a page was lost")
    told = time.monotonic()
    assert run.wait() == 1
    assert time.monotonic() - told < 15
    assert run.status["kind"] == "server_died"


def test_a_full_disk_has_its_own_name_and_the_way_out(tmp_path: Path) -> None:
    full = "OSError: [Errno 28] No space left on device"
    run = Run(tmp_path, scripted_plan({"die_after_s": 1.0, "say": full}, client={"seconds": 60}))
    assert run.wait() == 1
    assert run.status["kind"] == "disk_full"
    assert "free some space, a session needs 256 MiB, and measure this one again" in run.status["reason"]


def test_a_log_on_a_full_disk_silences_nobody(tmp_path: Path) -> None:
    attempt = Attempt(scripted_plan({}), tmp_path / "s0", Path("/dev/full"))
    assert attempt.fail("server_died", "p0 ended", 1.0)["kind"] == "server_died"
    assert "p0 ended" in (attempt.folder / "session.log").read_text()


def test_a_process_waits_for_those_it_is_to_be_started_after(tmp_path: Path) -> None:
    plan = scripted_plan({"ready_after_s": 1.0}, {}, client={"seconds": 0.1})
    first, second = plan.processes
    plan = plan.model_copy(update={"processes": (first, second.model_copy(update={"after": ("p0",)}))})
    run = Run(tmp_path, plan)
    assert run.wait() == 0, run.stderr
    ready_s = json.loads((run.out / "provenance.json").read_text())["ready_s"]
    assert 1.0 <= ready_s["p0"] < ready_s["p1"]


def test_a_server_that_answers_early_is_not_used_before_it_is_ready(tmp_path: Path) -> None:
    run = Run(tmp_path, scripted_plan({"ready_after_s": 60}, ready_s=1.0))
    assert run.wait() == 1
    assert run.status["kind"] == "not_ready"
    assert "p0 (/health answers 503)" in run.status["reason"]
    assert not (run.attempt() / "client.log").exists()


def test_a_router_without_all_its_workers_is_not_ready(tmp_path: Path) -> None:
    run = Run(tmp_path, scripted_plan({"healthy_workers": 1, "expected_workers": 4}, ready_s=1.0))
    assert run.wait() == 1
    assert "has 1 of 4 workers" in run.status["reason"]


def test_a_failing_client_is_a_failure_with_its_own_reason(tmp_path: Path) -> None:
    run = Run(tmp_path, scripted_plan({}, client={"exit_code": 3, "say": "error: no generation"}))
    assert run.wait() == 1
    assert run.status["kind"] == "not_ready"
    assert run.status["reason"].endswith("no generation came through: error: no generation")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupted_session_keeps_its_evidence_and_the_earlier_result(tmp_path: Path, number: int) -> None:
    assert Run(tmp_path, scripted_plan({})).wait() == 0
    run = Run(tmp_path, scripted_plan({"children": 1, "detached": 1}, client={"seconds": 15}))
    run.wait_for_line("measuring")
    time.sleep(0.5)
    run.process.send_signal(number)
    assert run.wait() == 130
    assert run.status["status"] == "ok", "the finished result is still there"
    assert json.loads((run.attempt(2) / "status.json").read_text())["kind"] == "interrupted"
    assert (run.attempt(2) / "requests.parquet").read_text() == "stopped"


def test_a_killed_supervisor_leaves_nothing_that_the_next_start_does_not_sweep(tmp_path: Path) -> None:
    run = Run(tmp_path, scripted_plan({"children": 1, "detached": 1}, client={"seconds": 15}))
    run.wait_for_line("measuring")
    time.sleep(1.5)
    run.process.send_signal(signal.SIGKILL)
    run.process.wait()
    after = Run(tmp_path, scripted_plan({}), name="s1")
    assert after.wait() == 0, after.stderr
    assert "ended a process left by an earlier session" in after.stderr


def test_a_taken_port_block_is_passed_over(tmp_path: Path) -> None:
    with closing(socket.socket()) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 42000))
        taken.listen()
        run = Run(tmp_path, scripted_plan({}))
        assert run.wait() == 0, run.stderr
    assert json.loads((run.out / "provenance.json").read_text())["ports"]["p0"] >= 42032


def test_a_port_that_another_program_took_and_answers_on_is_a_taken_port(tmp_path: Path) -> None:
    taken = {"die_after_s": 0.8, "say": "port 42000 is in use"}
    run = Run(tmp_path, scripted_plan(taken, {"ready_after_s": 5.0}))
    assert run.wait() == 1
    assert run.status["kind"] == "port_taken" and run.stderr.count("taking other ports") == 2


def test_two_sessions_on_one_machine_run_one_after_the_other(tmp_path: Path) -> None:
    first = Run(tmp_path, scripted_plan({}, client={"seconds": 6}), name="s0")
    first.wait_for_line("measuring")
    second = Run(tmp_path, scripted_plan({}), name="s1")
    assert second.wait() == 0, second.stderr
    assert "waiting: this machine is measuring for process" in second.stderr
    assert first.wait() == 0
    assert second.status["started_unix_s"] < first.status["started_unix_s"] + first.status["duration_s"]


def test_a_missing_package_is_one_sentence(tmp_path: Path) -> None:
    plan = scripted_plan({})
    process = plan.processes[0].model_copy(update={"command": ("{python}", "-m", "no_such_package.server")})
    run = Run(tmp_path, plan.model_copy(update={"processes": (process,)}))
    assert run.wait() == 1
    assert run.status["reason"] == "the Python package no_such_package is not installed; `make env` installs all"


def test_too_little_memory_is_one_sentence(tmp_path: Path) -> None:
    plan = scripted_plan({})
    run = Run(tmp_path, plan.model_copy(update={"limits": plan.limits.model_copy(update={"needed_memory_gib": 1e6})}))
    assert run.wait() == 1
    assert run.status["kind"] == "no_memory"


def test_gpus_that_are_not_there_are_one_sentence(tmp_path: Path) -> None:
    plan = scripted_plan({})
    process = plan.processes[0].model_copy(update={"gpus": tuple(range(64))})
    run = Run(tmp_path, plan.model_copy(update={"processes": (process,)}))
    assert run.wait() == 1
    assert run.status["kind"] == "no_gpu"
    assert "use --testbed cpu" in run.status["reason"]


def test_the_sweeper_leaves_a_process_alone_whose_number_was_given_away(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    try:
        gone = {"pid": 2**22 - 1, "started": 1.0}
        reused = {"pid": other.pid, "started": psutil.Process(other.pid).create_time() - 100}
        write_json(tmp_path / "sessions" / "1.json", {"supervisor": gone, "processes": [reused]})
        assert host.sweep(tmp_path) == []
        assert other.poll() is None
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
