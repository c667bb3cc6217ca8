"""`np1d gate` against a base commit: both sides measured in pairs by the real command, with scripted servers.

`speed.txt` stands for the engine of its commit; sessions of one speed vary by less than half a percent.
"""

import json
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.support.harness_copy import Checkout

GATE = ("gate", "decode/baseline", "--base", "HEAD~1", "--out", "gate/gate.json")

pytestmark = pytest.mark.slow


def commit(checkout: Checkout, speed: float, *, client: dict | None = None, **misbehaves: object) -> None:
    checkout.script({"baseline": {"client": client or {}}})
    (checkout.folder / "speed.txt").write_text(str(speed))
    (checkout.folder / "misbehaves.json").write_text(json.dumps(misbehaves))
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")
    for arguments in (("add", "--all", "--force", "."), (*identity, "commit", "-q", "-m", f"speed {speed}")):
        subprocess.run(["git", *arguments], cwd=checkout.folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path)
    (tmp_path / ".gitignore").write_text("/tmp/\n/results/\n/.cache/\n/.snakemake/\n__pycache__/\n")
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=tmp_path, check=True)
    commit(made, 100.0)
    return made


def judged(checkout: Checkout) -> dict:
    return json.loads((checkout.folder / "gate/gate.json").read_text())


def test_a_slower_commit_fails_and_is_confirmed(checkout: Checkout) -> None:
    commit(checkout, 90.0)
    code, text = checkout.run(*GATE)
    assert code == 1, text
    (cell,) = judged(checkout)["cells"]
    assert cell["verdict"] == "FAIL" and cell["method"] == "paired"
    assert cell["ratio"] == pytest.approx(0.9, abs=0.01)
    assert len(cell["candidate"]) == len(cell["baseline"]) == 5, "four pairs and one that confirms"
    assert cell["measured"].startswith("in pairs, both engines up at once")
    assert ET.parse(checkout.folder / "gate/gate.xml").getroot().get("failures") == "1"
    assert checkout.left_alive() == []


def test_an_equal_commit_passes_after_the_fewest_sessions(checkout: Checkout) -> None:
    commit(checkout, 100.1)
    code, text = checkout.run(*GATE)
    assert code == 0, text
    (cell,) = judged(checkout)["cells"]
    assert len(cell["candidate"]) == 4
    first = [line.split()[-1] for line in text.splitlines() if ": turn 1 of 6, " in line]
    assert first == ["candidate", "baseline"] * 2, "every other pair begins with the baseline"
    history = ("git", "rev-list", "--abbrev-commit", "--abbrev=12", "HEAD")
    new, old = subprocess.run(history, cwd=checkout.folder, check=True, capture_output=True, text=True).stdout.split()
    for side, other in (("candidate", old), ("baseline", new)):
        (plan,) = (checkout.folder / "results" / "gate").glob(f"*/{side}/decode/baseline/sp99_9/s0/plan.json")
        assert json.loads(plan.read_text())["conditions"]["in_turn"] == {"side": side, "other": other}


def test_a_candidate_that_dies_in_its_turn_ends_the_pair_which_is_invalid_for_that_reason(checkout: Checkout) -> None:
    commit(checkout, 200.0, dies_in_pass=1)
    code, text = checkout.run(*GATE)
    assert code == 3, text
    assert "candidate, results/gate/" in judged(checkout)["cells"][0]["reason"]
    assert "client_died: the load client ended with code 1" in judged(checkout)["cells"][0]["reason"]
    assert "baseline: FAILED (pair_ended): the pair ended before its time" in text
    assert checkout.left_alive() == []


def test_commits_that_plan_different_loads_are_not_compared(checkout: Checkout) -> None:
    commit(checkout, 100.0, client={"passes": 4})
    code, text = checkout.run(*GATE)
    assert code == 3, text
    assert "the two commits plan different loads: passes: " in judged(checkout)["cells"][0]["reason"]


def test_an_unknown_base_is_one_sentence(checkout: Checkout) -> None:
    code, text = checkout.run("gate", "decode/baseline", "--base", "nowhere")
    assert code == 2
    assert text.splitlines()[-1].startswith("error: nowhere is no commit, branch or tag of this repository")


def test_a_store_fills_up_and_then_judges(checkout: Checkout) -> None:
    stored = ("gate", "decode/baseline", "--store", "baselines", "--update", "--out", "gate/gate.json")
    code, text = checkout.run(*stored)
    assert code == 4, "nothing to compare with is no pass"
    assert text.count("output_tok_s = ") == 4, "and no reason to measure on"
    assert "in turn" not in (checkout.folder / "gate/gate.md").read_text()
    added = int(next(line for line in text.splitlines() if "sessions added to the store" in line).split()[0])
    assert added == 4
    assert checkout.run(*stored)[0] == 0
    commit(checkout, 80.0)
    code, text = checkout.run(*stored)
    assert code == 1, text
    assert "sessions added" not in text, "a failing commit never becomes the baseline"


def test_sessions_that_are_there_are_candidates_only_with_this_commits_code(checkout: Checkout, tmp_path: Path) -> None:
    assert checkout.run("run", "decode/baseline", "--sessions", "2", "--no-report")[0] == 0
    cell = checkout.folder / "results/cpu/decode/baseline/sp99_9"
    shutil.copytree(cell / "s1", cell / "s2")
    status = json.loads((cell / "s2/status.json").read_text())
    (cell / "s2/status.json").unlink()
    (cell / "s2/status.json").write_text(json.dumps(status | {"measured_code": "another", "started_unix_s": 9e9}))
    shutil.copytree(cell / "s1", cell / "s1_old")
    code, text = checkout.run(
        "gate", "decode/baseline", "--existing", "--store", "store", "--update", "--out", "g.json"
    )
    assert code == 4, text
    assert "decode/baseline/sp99_9: 1 of 3 sessions ran other code or settings and are no candidates" in text
    assert "2 sessions added to the store" in text
    assert len((checkout.folder / "store/decode_baseline_sp99_9.jsonl").read_text().splitlines()) == 2
