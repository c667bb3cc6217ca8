"""What an edit makes run again: dry runs of the real rules over a copy of the repository.

Servers are left out here: in the copy, a session is a program that writes its status at once. What it depends on, and
what Snakemake therefore runs again, is the real thing.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = ["decode/baseline", "decode/fp8_kv", "prefill/baseline"]

SESSION = """
import argparse, json, pathlib
parser = argparse.ArgumentParser()
for name in ("plan", "out", "--on-failure", "--log"):
    parser.add_argument(name)
options = parser.parse_args()
plan = json.loads(pathlib.Path(options.plan).read_text())
(pathlib.Path(options.out) / "status.json").write_text(json.dumps({"status": "ok", "cell": plan["cell"]}))
"""
MEASURE = """
import pathlib, sys
(pathlib.Path(sys.argv[1]) / "metrics.json").write_text("{}")
"""
BUILD = """
import pathlib, sys
path = pathlib.Path(".cache/checkpoints") / sys.argv[1]
path.mkdir(parents=True, exist_ok=True)
(path / "config.json").write_text("{}")
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which three rows have been measured."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("Snakefile", "pyproject.toml"):
        shutil.copy(ROOT / name, copy / name)
    for name in ("workflows", "workloads", "stack"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, source in (("session", SESSION), ("measure", MEASURE)):
        (copy / "workflows" / f"{name}.py").write_text(source)
    snakemake(copy, targets(), "--quiet", "all")
    assert planned(copy) == {}
    return copy


@pytest.fixture
def copy(measured: Path) -> Path:
    """The copy, put back as it was after the test."""
    before = {
        path: path.read_bytes() for path in measured.rglob("*") if path.suffix in (".py", ".yaml", ".rst", ".smk")
    }
    yield measured
    for path, content in before.items():
        if path.read_bytes() != content:
            path.write_bytes(content)


def targets() -> list[str]:
    workloads = {"decode": "sp99_9", "prefill": "prefill_only"}
    folders = [f"results/cpu/{row}/{workloads[row.split('/')[0]]}/s0" for row in ROWS]
    return [f"{folder}/{name}.json" for folder in folders for name in ("metrics", "status")]


def snakemake(copy: Path, wanted: list[str], *options: str) -> str:
    command = [sys.executable, "-m", "snakemake", *wanted, "--profile", "workflows/profiles/default", *options,
               "--config", f"rows={json.dumps(ROWS)}"]  # fmt: skip
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def planned(copy: Path) -> dict[str, int]:
    """Jobs by rule that Snakemake would run now."""
    text = snakemake(copy, targets(), "--dry-run")
    table = re.search(r"Job stats:\n(.*?)\n\n", text, re.DOTALL)
    rows = re.findall(r"^(\w+)\s+(\d+)$", table.group(1), re.MULTILINE) if table else []
    return {rule: int(count) for rule, count in rows if rule != "total"}


def edit(copy: Path, name: str, old: str, new: str) -> None:
    path = copy / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def test_a_run_leaves_its_order_and_the_seed_that_drew_it(copy: Path) -> None:
    (line,) = (copy / "results/cpu/orders.jsonl").read_text().splitlines()
    noted = json.loads(line)
    assert noted["seed"] == 0 and sorted({folder.rsplit("/", 2)[0] for folder in noted["order"]}) == sorted(ROWS)


def test_a_changed_row_runs_that_row_again_and_no_other(copy: Path) -> None:
    edit(copy, "workflows/config/ladders.yaml", "scheduler.extra_inflight: 0", "scheduler.extra_inflight: 1")
    jobs = planned(copy)
    assert jobs["session"] == 2, "the baseline of the ladder and the row that inherits from it"
    edit(copy, "workflows/config/ladders.yaml", "scheduler.extra_inflight: 1", "scheduler.extra_inflight: 0")
    ladder = "workflows/config/ladders.yaml"
    edit(copy, ladder, "fp8_e4m3, cache.index_layout: pooled}}", "fp8_e4m3}}")
    assert planned(copy) == {"plan": 1, "session": 1, "metrics": 1}


def test_a_changed_question_caption_or_new_row_measures_nothing(copy: Path) -> None:
    edit(
        copy,
        "workflows/config/ladders.yaml",
        "What do smaller KV rows bring by admitting more requests?",
        "What else?....",
    )
    edit(copy, "workflows/report/page.rst", "Measured values", "Values")
    edit(copy, "workflows/config/ladders.yaml", "      - id: fp8_kv_radix\n",
         "      - id: another\n        question: Is a new row harmless?\n        base: decode/baseline\n"
         "        set: {decode: {scheduler.extra_inflight: 3}}\n        sglang: {none: it has no such launch}\n"
         "      - id: fp8_kv_radix\n")  # fmt: skip
    assert "session" not in planned(copy)


def test_a_comment_in_the_engine_measures_nothing(copy: Path) -> None:
    path = copy / "stack" / "config.py"
    path.write_text("# a remark\n" + path.read_text().replace("How decode guesses ahead", "How decode looks ahead"))
    assert planned(copy) == {}


def test_a_changed_engine_source_measures_its_rows_again(copy: Path) -> None:
    path = copy / "stack" / "core" / "clock.py"
    path.write_text(path.read_text() + "\nANOTHER = 1\n")
    jobs = planned(copy)
    assert jobs["session"] == len(ROWS)
    assert "plan" not in jobs


def test_a_gpu_kernel_measures_no_cpu_row_again(copy: Path) -> None:
    (copy / "stack" / "kernels" / "moe" / "triton_another.py").write_text("TILE = 1\n")
    try:
        assert planned(copy) == {}
    finally:
        (copy / "stack" / "kernels" / "moe" / "triton_another.py").unlink()


def test_raising_the_version_of_measuring_measures_everything_again(copy: Path) -> None:
    edit(copy, "workflows/identity.py", "MEASURE_VERSION = 1", "MEASURE_VERSION = 2")
    assert planned(copy)["session"] == len(ROWS)


def test_a_changed_definition_of_metrics_computes_them_again_without_measuring(copy: Path) -> None:
    path = copy / "workloads" / "metrics.py"
    path.write_text(path.read_text() + "\nANOTHER = 1\n")
    jobs = planned(copy)
    assert jobs.get("metrics") == len(ROWS)
    assert "session" not in jobs


def test_a_session_more_adds_only_the_missing_ones(copy: Path) -> None:
    second = [target.replace("/s0/", "/s1/") for target in targets()]
    text = snakemake(copy, [*targets(), *second], "--dry-run")
    assert re.search(r"^session\s+3$", text, re.MULTILINE)


def test_a_status_that_was_lost_is_measured_again(copy: Path) -> None:
    path = copy / targets()[0].replace("metrics.json", "status.json")
    content = path.read_text()
    path.unlink()
    try:
        assert planned(copy)["session"] == 1
    finally:
        path.write_text(content)
