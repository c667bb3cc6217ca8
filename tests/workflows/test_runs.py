"""`np1d run` on every bad way out, with the real command, Snakemake and supervisor; only the servers are small scripts.

Nothing finished is lost, nothing is left running, and the same command continues.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.harness_copy import Checkout
from workloads.files import read_json

RUN = ("run", "decode/baseline", "decode/fp8_kv", "--no-report")

pytestmark = pytest.mark.slow


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path)
    yield made
    assert made.left_alive() == []


def wait_for(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stdout is not None
    seen = []
    while line := process.stdout.readline():
        seen.append(line)
        if text in line:
            return
    raise AssertionError("".join(seen))


def test_everything_is_planned_before_anything_is_measured(checkout: Checkout) -> None:
    """A plan takes a processor for a second or two, which a session beside it would be measured with."""
    assert checkout.run(*RUN, "--sessions", "3")[0] == 0
    folder = checkout.folder / "results/cpu"
    planned = [path.stat().st_mtime for path in folder.glob("*/*/*/s*/plan.json")]
    started = [read_json(path)["started_unix_s"] for path in folder.glob("*/*/*/s*/status.json")]
    assert len(planned) == len(started) == 6 and max(planned) < min(started)


def test_ctrl_c_keeps_what_is_finished_and_the_same_command_continues(checkout: Checkout) -> None:
    long = {"client": {"seconds": 60}}
    checkout.script({"baseline": long, "fp8_kv": long})
    process = checkout.start(*RUN)
    wait_for(process, "measuring")
    os.killpg(process.pid, signal.SIGINT)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 130, text
    assert "the same command continues" in text
    assert checkout.left_alive() == []
    checkout.script({})
    code, text = checkout.run(*RUN)
    assert code == 0, text
    assert checkout.run(*RUN)[0] == 0
    assert checkout.attempts("decode/baseline") + checkout.attempts("decode/fp8_kv") == 3, "nothing is measured twice"


def test_a_killed_snakemake_leaves_nothing_and_its_lock_is_no_obstacle(checkout: Checkout) -> None:
    checkout.script({"baseline": {"client": {"seconds": 60}}, "fp8_kv": {"client": {"seconds": 60}}})
    process = checkout.start(*RUN)
    wait_for(process, "measuring")
    (snakemake,) = [p for p in psutil.Process(process.pid).children() if "snakemake" in " ".join(p.cmdline())]
    snakemake.kill()
    assert process.communicate(timeout=60) and process.returncode != 0
    assert checkout.left_alive() == []
    checkout.script({})
    code, text = checkout.run(*RUN)
    assert code == 0, text


def test_a_second_run_in_the_same_folder_is_one_sentence(checkout: Checkout) -> None:
    checkout.script({"baseline": {"client": {"seconds": 20}}})
    first = checkout.start(*RUN)
    wait_for(first, "starting p0")
    code, text = checkout.run(*RUN)
    assert code == 2
    assert "another np1d run (process" in text
    code, text = checkout.run("rerun", "--failed", "--yes")
    assert (code, "another np1d run (process" in text) == (2, True), text
    assert first.communicate(timeout=120) and first.returncode == 0


def test_a_server_that_dies_is_data_and_the_other_row_is_measured(checkout: Checkout) -> None:
    checkout.script({"baseline": {"server": {"die_after_s": 0.5, "ready_after_s": 30, "say": "no room for 12 slots"}}})
    code, text = checkout.run(*RUN)
    assert code == 1
    assert checkout.status("decode/baseline")["kind"] == "server_died"
    assert checkout.status("decode/fp8_kv")["status"] == "ok"
    assert "no room for 12 slots" in text
    assert "np1d rerun --failed --yes" in text
    rows = checkout.folder / "results/cpu/decode"
    (rows / "baseline").rename(rows / "gone")
    code, text = checkout.run("rerun", "--failed")
    assert code == 0 and "1 session failed in rows that are gone; np1d prune lists them" in text
    assert "there is no failed session that a run would measure" in text


def test_a_failed_measurement_never_replaces_a_valid_one(checkout: Checkout) -> None:
    run = ("run", "decode/baseline", "--no-report")
    assert checkout.run(*run)[0] == 0
    (checkout.folder / "speed.txt").write_text("which the client cannot read")
    code, text = checkout.run(*run, "--force")
    assert code == 1
    listed = " ".join(checkout.run("list", "--results")[1].split())
    assert "cpu decode/baseline sp99_9 s0 VALID" in listed
    assert "a newer attempt (0002) is no result: client_died" in listed
    (checkout.folder / "speed.txt").unlink()
    code, text = checkout.run("rerun", "--failed", "--yes")
    assert "1 session will be measured" in text
    assert checkout.run(*run)[0] == 0
    assert "newer" not in checkout.status("decode/baseline")
    assert checkout.attempts("decode/baseline") == 3
