"""`python -m stack.plan` prints every term without loading weights, and refuses in one sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stack.plan.__main__ import main

ROOT = Path(__file__).parents[3]


@pytest.fixture
def quarter_config(tmp_path):
    file = tmp_path / "config.json"
    model = {"path": str(ROOT / "workloads/checkpoints/quarter"), "weights": "random", "device": "cuda"}
    file.write_text(json.dumps({"role": "decode", "model": model, "cache": {"page_size": 256}}))
    return str(file)


def test_the_table_names_every_term(quarter_config, capsys):
    assert main([quarter_config, "--free-bytes", "140000000000"]) == 0
    shown = capsys.readouterr().out
    for name in ("weights", "graphs", "activations", "recurrent states", "target KV", "index workspace", "running"):
        assert name in shown


def test_json_carries_counts_and_bytes(quarter_config, capsys):
    assert main([quarter_config, "--free-bytes", "140000000000", "--set", "cache.kv_dtype=fp8_e4m3", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["bytes.weights"] == pytest.approx(80.3e9, rel=2e-3)
    assert plan["max_running"] >= 1 and plan["max_total_tokens"] == plan["num_pages"] * 256


def test_given_weights_win_over_computed_ones(quarter_config, capsys):
    assert main([quarter_config, "--free-bytes", "140000000000", "--weights-bytes", "1000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes.weights"] == 1000


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        ([], "pass --free-bytes"),
        (["--set", "cache.page_sizes=3"], "did you mean"),
        (["--set", "nonsense"], "PATH=VALUE"),
        (["--set", "cache.budget_bytes=500000000"], "set cache.expected_context to"),
        (["--set", "cache.budget_bytes=90000000000", "--free-bytes", "150000000000"], "set cache.budget_bytes to"),
        (["--free-bytes", "-3"], "more than 0"),
        (["--free-bytes", "0"], "more than 0"),
        (["--free-bytes", "150000000000", "--weights-bytes", "-1"], "must not be negative"),
        (
            ["--set", "cache.budget_bytes=9000000000", "--set", "scheduler.max_running=4000"],
            "set scheduler.max_running",
        ),
    ],
)
def test_a_mistake_gets_one_sentence_with_the_way_out(quarter_config, capsys, arguments, way_out):
    assert main([quarter_config, *arguments]) == 2
    message = capsys.readouterr().err
    assert way_out in message and message.count("\n") == 1


def test_a_reader_that_goes_away_ends_it_quietly(quarter_config):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "stack.plan", quarter_config, "--free-bytes", "140000000000"]
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_it_needs_no_torch(quarter_config):
    code = "import sys; from stack.plan.__main__ import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-c", code, quarter_config, "--free-bytes", "140000000000"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60).returncode == 0
