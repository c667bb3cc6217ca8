"""The command line: good help, and one sentence for each mistake."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ["doctor", "list", "plan", "run", "serve", "why", "rerun", "prune", "import", "report",
            "gate", "calibrate", "profile"]  # fmt: skip


def np1d(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workflows.cli", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_help_names_every_command() -> None:
    text = np1d("--help").stdout
    assert all(command in text for command in [*COMMANDS, "tune"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["list", "--testbed", "cpuu"], "error: there is no testbed cpuu; did you mean cpu?"),
        (["run", "decode/fp8kv"], "error: there is no row decode/fp8kv; did you mean decode/fp8_kv"),
        (["plan", "prefill/cp_bcg"], "error: prefill/cp_bcg does not run on cpu: changes nothing here"),
        (["run"], "error: name rows or suites (np1d list shows them), or give --demo for a first look"),
        (["run", "decode/baseline", "--demo"], "error: give either rows or --demo"),
        (["rerun"], "error: say what to run again: np1d rerun --failed"),
        (["import", "/nowhere"], "error: there is no folder /nowhere"),
        (["import", "README.md"], "error: README.md is a file; give the folder of a session"),
        (["import", "docs"], "error: docs holds no session"),
        (["run", "baseline"], "error: there is no suite or row baseline; did you mean prefill/baseline or decode/base"),
        (["run", "decode,prefill"], "error: there is no row 'decode,prefill'; names of several rows are given apart"),
        (["run", "decode/*"], "error: there is no row decode/*; the name of a suite alone stands for all"),
        (["run", "decode/baseline/sp99_9"], "error: there is no row decode/baseline/sp99_9; decode/baseline is one"),
        (["run", "decode/baseline/sp99_9/s0"], "error: there is no row decode/baseline/sp99_9/s0; a row is named"),
        (["run", ""], "error: there is no suite or row ''; there are prefill, decode"),
        (["run", "decode/baseline", "--workload", ""], "error: decode/baseline has no workload ''; there are sp99_9"),
        (["run", "decode/baseline", "--profile", "workflows/profiles/slrm"], "error: there is no profile workflows/pr"),
        (["plan", "decode"], "error: decode is a suite and one row is asked for, such as decode/baseline"),
        (["plan", "decode/baseline", "--hosts", "a"], "error: a plan is for one machine, where --commands is for"),
        (["plan", "decode/baseline", "--commands", "--session", "2"], "error: --commands prints launches without a l"),
        (["plan", "decode/baseline", "--out", "README.md"], "error: README.md cannot be written or read (File exists)"),
        (
            ["plan", "integrated/optimized", "--testbed", "h200x16", "--commands", "--hosts", "a", "--hosts", "a"],
            "error: --hosts names a twice; each script is for a host of its own",
        ),
        (["run", "--demo", "--testbed", "h200x1"], "error: h200x1 has no demo, and cpu has; name rows or suites"),
        (["list", "--testbeds", "decode"], "error: --testbeds shows all of them and uses no rows"),
        (["rerun", "--failed", "--testbed", "cpuu"], "error: there is no testbed cpuu; did you mean cpu?"),
        (["list", "--results", "--testbed", "cpuu"], "error: there is no testbed cpuu; did you mean cpu?"),
        (["report", "--engine", "vllm"], "error: there is no engine vllm; there are stack, sglang"),
        (["why", "decode"], "error: decode is a suite and one row is asked for"),
        (["why", "README.md"], "error: README.md is a file; name the session's folder"),
        (["routes", "docs"], "error: docs is no file; give what kernels.moe_routes recorded"),
        (["gate", "decode/baseline", "--base", "HEAD", "--existing"], "error: --existing compares sessions that are"),
        (
            ["report", "--testbed", "h200x16"],
            "error: nothing was measured on h200x16 yet; np1d run measures, np1d import",
        ),
        (["report", "--testbed", "h200"], "error: there is no testbed h200; did you mean h200x"),
        (["gate", "decode/baseline"], "error: give one of --base COMMIT and --store FOLDER"),
        (["gate", "decode/baseline", "--base", "HEAD", "--update"], "error: --update adds to a store"),
        (["gate", "decode/baseline", "--base", "nosuchref"], "error: nosuchref is no commit, branch or tag"),
        (["why", "decode/baseline/sp99"], "error: decode/baseline has no workload sp99; did you mean sp99_9"),
        (["why", "decode/basline"], "error: there is no row decode/basline; did you mean decode/baseline"),
        (["plan", "decode/fp8_kv", "--memory", "--out", "x"], "error: --memory prints what fits and uses no --out"),
        (["plan", "decod", "--memory"], "error: there is no suite or row decod; did you mean decode"),
        (["list", "--engine", "vllm"], "error: there is no engine vllm; there are stack, sglang"),
        (["gate", "decode/baseline", "--store", "/nowhere"], "error: there is no store /nowhere; --update begins one"),
        (["calibrate", "decode/basline"], "error: there is no row decode/basline; did you mean decode/baseline"),
        (["plan", "decode/baseline", "--commands", "--placement", "k8s"], "error: placement must be hosts or srun"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_sentence_and_code_two(arguments: list[str], sentence: str) -> None:
    done = np1d(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(sentence), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has what is refused elsewhere")
@pytest.mark.parametrize("command", ["run", "gate", "calibrate", "profile"])
def test_a_testbed_with_gpus_is_refused_before_anything_starts(command: str) -> None:
    more = ["--base", "HEAD"] if command == "gate" else []
    done = np1d(command, "decode/baseline", "--testbed", "h200x1", *more)
    assert done.returncode == 2
    assert done.stderr.startswith("error: testbed h200x1 needs NVIDIA GPUs and this machine shows none; use --testbed")
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_suite_may_end_in_the_slash_of_a_completed_word() -> None:
    assert np1d("list", "prefill/").stdout == np1d("list", "prefill").stdout


def test_a_selection_that_does_not_run_here_is_refused_with_its_reasons() -> None:
    done = np1d("run", "micro", "--no-report")
    assert done.returncode == 2
    assert "needs kernel_bench" in done.stderr
    assert "error: nothing of this selection runs on cpu; the reasons are above" in done.stderr


def test_a_mistyped_command_is_answered_with_the_nearest() -> None:
    done = np1d("rnu")
    assert done.returncode == 2
    assert "Did you mean 'run'?" in done.stderr


def test_rows_are_listed_with_the_reason_where_they_do_not_run() -> None:
    text = np1d("list", "prefill").stdout
    assert "prefill/baseline" in text and "runnable" in text
    assert "changes nothing here: the testbed lacks context_parallel" in text


def test_a_plan_is_printed_as_json() -> None:
    import json

    assert json.loads(np1d("plan", "decode/baseline").stdout)["schema"] == "plan/1"


def test_a_fault_of_np1d_is_no_verdict() -> None:
    broken = "import workflows.cli as cli; cli.app = lambda **named: 1 / 0; cli.main()"
    done = subprocess.run([sys.executable, "-c", broken], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 70
    assert "ZeroDivisionError" in done.stderr and "no verdict and no result" in done.stderr
