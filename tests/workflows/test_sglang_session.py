"""The published engine is started, watched and ended by our supervisor, with every printed flag but the ports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from workflows.catalog import Catalog, load_catalog
from workflows.engines.sglang import h200_commands
from workflows.errors import SessionError, WorkflowError
from workflows.plan import Plan
from workflows.planner import plan_session
from workflows.profiling import profile_row
from workflows.resolution import resolve
from workflows.scripts import render
from workflows.supervisor import given
from workloads.files import write_json

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"
OPTIMIZED = "decode/dflash2_tuned_moe_dsa_partial"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def planned(row: str, workload: str = "sp99_9") -> Plan:
    return plan_session(row, workload, testbed_id="h200x8")


@pytest.mark.parametrize("row", ["decode/baseline", OPTIMIZED])
def test_a_session_starts_the_printed_launch_on_ports_of_its_own(catalog: Catalog, row: str) -> None:
    plan = planned(row)
    printed = {command.name: command for command in h200_commands(catalog, row, "sp99_9")}
    for process, name in zip(plan.processes, ("p0", "d"), strict=False):
        ours = process.command[process.command.index("serve") + 1 :]
        assert len(ours) == len(printed[name].arguments)
        differing = {
            printed[name].arguments[at - 1]: word
            for at, word in enumerate(ours)
            if word != printed[name].arguments[at] and "_HOST" not in printed[name].arguments[at]
        }
        assert set(differing) <= {"--port", "--nccl-port", "--disaggregation-bootstrap-port"}
        assert all(word.startswith("{port:") for word in differing.values())
    router = plan.processes[-1].command
    assert router[router.index("--prefill") + 2] == "{port:p0_bootstrap}"
    assert "/path/to" not in json.dumps(plan.to_json())


def test_every_row_with_a_launch_runs_where_one_host_holds_it_and_may_be_called_reproduced(catalog: Catalog) -> None:
    runnable = [row for row in catalog.rows.values() if resolve(catalog, row, "h200x8").status == "runnable"]
    assert {"prefill/baseline", "decode/baseline", OPTIMIZED} <= {row.name for row in runnable}
    for entry in runnable:
        labels = planned(entry.name, entry.workloads[0]).labels
        real = ("weights", "acceptance", "admission", "lengths", "scale")
        assert [labels[name] for name in real] == ["checkpoint", labels["acceptance"], "transfer", "published", "full"]
        assert labels["acceptance"] in ("natural", "none")
    assert resolve(catalog, catalog.row("integrated/optimized"), "h200x16").status == "script_only"


def test_what_only_the_user_knows_is_asked_for_by_name(tmp_path: Path) -> None:
    plan = planned(OPTIMIZED)
    with pytest.raises(SessionError, match="set DRAFT_MODEL_PATH and MODEL_PATH and SGLANG_OPTIMIZED to the folders"):
        given.check(plan, {})
    folders = {name: str(tmp_path) for name in ("DRAFT_MODEL_PATH", "MODEL_PATH", "SGLANG_OPTIMIZED")}
    with pytest.raises(SessionError, match=r"there is no .*bin/sglang, which is the plan's \$SGLANG_OPTIMIZED/bin"):
        given.check(plan, folders)


def test_what_only_our_engine_can_say_is_not_said_in_the_name_of_the_published_one(tmp_path: Path) -> None:
    with pytest.raises(WorkflowError, match="not ours to profile"):
        profile_row("decode/baseline", "", "h200x8", tmp_path)
    with pytest.raises(WorkflowError, match="plans its memory itself"):
        planned("decode/baseline", "sp99_9_tuned")


def test_a_script_says_how_the_environments_of_its_programs_are_made() -> None:
    text = render(OPTIMIZED, "", "h200x8", "default", [], "hosts")[0].text
    assert "#   python3.12 -m venv sglang-optimized" in text and "sglang-baseline" not in text
    assert 'export PATH="${SGLANG_OPTIMIZED:+$SGLANG_OPTIMIZED/bin:}$PATH"' in text


STAND_IN = """#!{python}
import json, os, runpy, sys
told = {{"words": sys.argv[1:], "env": dict(os.environ)}}
role = sys.argv[sys.argv.index("--disaggregation-mode") + 1]
port = sys.argv[sys.argv.index("--port") + 1]
open("{folder}/" + role + ".json", "w").write(json.dumps(told))
sys.argv = ["scripted_server.py", "{folder}/script.json", "--port", port]
runpy.run_path("{support}/scripted_server.py", run_name="__main__")
"""


@pytest.mark.slow
def test_its_servers_are_ready_recorded_and_ended_like_our_own(tmp_path: Path) -> None:
    """A stand-in for the program, since the real one needs eight GPUs; the router is the real one."""
    (tmp_path / "bin").mkdir()
    lists_gpus = "#!/bin/sh\n" + "".join(f"echo GPU-{index}\n" for index in range(8))
    stand_in = STAND_IN.format(python=sys.executable, folder=tmp_path, support=SUPPORT)
    for name, text in {"nvidia-smi": lists_gpus, "sglang": stand_in}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    write_json(tmp_path / "config.json", {})
    write_json(tmp_path / "script.json", {"children": 1})
    plan = planned(OPTIMIZED)
    client = ("{python}", str(SUPPORT / "scripted_client.py"), *plan.client.command[3:6], "--out", "{dir}")
    limits = plan.limits.model_copy(update={"ready_timeout_s": 60.0, "grace_s": 2.0, "port_base": 45000})
    scripted = plan.client.model_copy(update={"command": client})
    write_json(tmp_path / "plan.json", plan.model_copy(update={"client": scripted, "limits": limits}).to_json())
    folders = {name: str(tmp_path) for name in ("DRAFT_MODEL_PATH", "MODEL_PATH", "SGLANG_OPTIMIZED")}
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **folders, "PATH": path, "MOE_CONFIG_DIR": "of the user", "PYTHONPATH": str(ROOT)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    command = [
        sys.executable,
        str(SUPPORT / "run_session.py"),
        *(str(tmp_path / n) for n in ("plan.json", "out", "st")),
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for role in ("prefill", "decode"):
        told = json.loads((tmp_path / f"{role}.json").read_text())
        assert told["words"][:3] == ["serve", "--model-path", str(tmp_path)]
        assert "MOE_CONFIG_DIR" not in told["env"] and "/path/to" not in json.dumps(told["words"])
    recorded = (tmp_path / "out" / "provenance.json").read_text()
    assert "$SGLANG_OPTIMIZED/bin/sglang" in recorded and str(tmp_path) not in recorded
    assert {"p0", "d0", "router"} == set(json.loads(recorded)["ready_s"])
    assert not [p for p in psutil.process_iter(["cmdline"]) if f"{tmp_path}/script.json" in (p.info["cmdline"] or [])]
