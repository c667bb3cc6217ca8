"""A dry run says which cells would run, why, how often and for how long; the same command then does it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.harness_copy import Checkout
from workflows.preview import session_words

RUN = ("run", "decode/baseline", "decode/fp8_kv", "--no-report")


def test_numbers_in_a_row_are_one_word() -> None:
    assert (
        session_words([f"cpu/decode/baseline/sp99_9/s{number}" for number in (0, 2, 3, 4, 9, 10)]) == "s0 s2-s4 s9-s10"
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path)
    yield made
    assert made.left_alive() == []


def preview(checkout: Checkout, *arguments: str) -> list[str]:
    """Lines of a dry run, blanks within them made one."""
    code, text = checkout.run(*RUN, "--dry-run", *arguments)
    assert code == 0, text
    assert "Job stats" not in text and "rule session" not in text
    assert (checkout.folder / "logs/cpu/dry_run.log").is_file()
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.slow
def test_a_dry_run_names_cells_reasons_and_seconds_from_new_to_nothing_to_do(checkout: Checkout) -> None:
    lines = preview(checkout)
    assert "decode/baseline sp99_9 1 s0 new not known" in lines
    assert "2 of 2 selected sessions would run, for how long is not known: no such session has run here" in lines
    checkout.script({"fp8_kv": {"server": {"die_after_s": 0.5, "ready_after_s": 30}}})
    assert checkout.run(*RUN)[0] == 1
    lines = preview(checkout)
    assert "nothing to measure: all 2 selected sessions have ended" in lines
    assert any(
        line.startswith("1 of those that would not run is no valid result; np1d rerun --failed") for line in lines
    )
    assert checkout.run("rerun", "--failed", "--yes")[0] == 0
    assert "decode/fp8_kv sp99_9 1 s0 failed before: server_died not known" in preview(checkout)
    checkout.script({})
    assert checkout.run(*RUN)[0] == 0
    assert not any("would not run" in line for line in preview(checkout))

    path = checkout.folder / "stack" / "core" / "clock.py"
    path.write_text(path.read_text() + "\nANOTHER = 1\n")
    lines = preview(checkout)
    assert any(line.startswith("decode/baseline sp99_9 1 s0 it ran other code ") for line in lines), lines
    assert any(line.startswith("2 of 2 selected sessions would run, about ") for line in lines)
    assert any("asked for with --force" in line for line in preview(checkout, "--force"))
    assert len(preview(checkout, "--stop-on-failure")) == len(lines), "how a failure ends a run changes no result"


@pytest.mark.slow
def test_imported_sessions_of_other_code_are_no_sessions_of_those_asked_for(checkout: Checkout, tmp_path: Path) -> None:
    run = ("run", "decode/baseline", "--no-report")
    assert checkout.run(*run)[0] == 0
    cell = checkout.folder / "results/cpu/decode/baseline/sp99_9"
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(cell / "s0", elsewhere)
    status = json.loads((elsewhere / "status.json").read_text())
    (elsewhere / "status.json").write_text(json.dumps(status | {"measured_code": "another", "started_unix_s": 1.0}))
    assert checkout.run("import", str(elsewhere))[0] == 0
    assert (cell / "s1/status.json").is_file()
    code, text = checkout.run(*run, "--sessions", "2")
    assert code == 0, text
    assert "decode/baseline sp99_9 s1 does not count (it ran other code): measured again" in text
    for number in range(2):
        today = json.loads((cell / f"s{number}/status.json").read_text())
        assert today["measured_code"] == status["measured_code"]
    assert json.loads((cell / "s1/attempts/0001/status.json").read_text())["measured_code"] == "another", "it is kept"
    assert "does not count" not in checkout.run(*run, "--sessions", "2")[1]
