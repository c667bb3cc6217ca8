"""`np1d run` on every bad way out, with the real command, Snakemake and supervisor; only the servers are small scripts.

Nothing finished is lost, nothing is left running, and the same command continues.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"
PLANNER = f'''
from workflows.catalog import load_catalog
from workflows.plan import Cell, ClientPlan, Limits, Plan, ProcessPlan, Ready
import json, pathlib

def plan_session(row, workload, *, testbed_id, session=0, engine="default", catalog=None):
    suite, row_id = row.split("/")
    script = json.loads(pathlib.Path("script.json").read_text()).get(row_id, {{}})
    server = ("{{python}}", "{SUPPORT}/scripted_server.py", "{{dir}}/p0.json", "--port", "{{port:p0}}")
    client = ("{{python}}", "{SUPPORT}/scripted_client.py", "{{dir}}/workload.json", "--url",
              "http://127.0.0.1:{{port:p0}}", "--out", "{{dir}}")
    return Plan(
        cell=Cell(testbed=testbed_id, suite=suite, row=row_id, workload=workload, session=session, engine="stack"),
        question="?", metric="output_tok_s", expect=None, published=None, measure_version=1, settings={{}}, parts=(),
        left_out={{}}, labels={{"platform": "cpu"}}, conditions={{}},
        model={{"name": "none", "path": ".cache/none", "build": []}},
        processes=(ProcessPlan(name="p0", role="prefill", command=server, ports=("p0",), ready=Ready(path="/health"),
                               files={{"p0.json": {{"children": 1, "detached": 1, **script.get("server", {{}})}}}}),),
        client=ClientPlan(command=client, url_port="p0", workload={{"identity": {{}}, **script.get("client", {{}})}}),
        limits=Limits(ready_timeout_s=20, deadline_s=60, grace_s=1, port_base=43000),
    )
'''
MEASURE = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
status = json.loads((folder / "status.json").read_text())
ok = status["status"] == "ok"
reasons = [] if ok else [f"session: {status['kind']}: {status['reason']}"]
body = {"validity": {"verdict": "VALID" if ok else "INVALID", "reasons": reasons}, "metric": "output_tok_s"}
body["metrics" if ok else "diagnostics"] = {"output_tok_s": 1.0} if ok else {}
(folder / "metrics.json").write_text(json.dumps(body))
"""
BUILD = "def ensure_model(facts): pass\n"
ROWS = ("decode/baseline", "decode/fp8_kv")

pytestmark = pytest.mark.slow


class Checkout:
    """A copy of the harness whose plans start scripted servers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        shutil.copy(ROOT / "Snakefile", folder)
        for name in ("workflows", "workloads", "stack"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name, source in (("planner", PLANNER), ("measure", MEASURE), ("build", BUILD)):
            (folder / "workflows" / f"{name}.py").write_text(source)
        models = folder / "workflows" / "config" / "models.yaml"
        models.write_text(models.read_text().replace("build: [-m, stack", "build: []  # [-m, stack"))
        self.script({})

    def script(self, content: dict[str, Any]) -> None:
        (self.folder / "script.json").write_text(json.dumps(content))

    def start(self) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "workflows.cli", "run", *ROWS, "--no-report"]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self) -> tuple[int, str]:
        process = self.start()
        text = process.communicate(timeout=150)[0]
        return process.returncode, text

    def status(self, row: str) -> dict[str, Any]:
        return json.loads((self.folder / "results/cpu" / row / "sp99_9/s0/status.json").read_text())

    def attempts(self, row: str) -> int:
        return len(list((self.folder / "results/cpu" / row / "sp99_9/s0/attempts").iterdir()))

    def left_alive(self) -> list[str]:
        until = time.monotonic() + 15
        while True:
            left = [
                f"{p.pid} {' '.join(p.info['cmdline'])}"
                for p in psutil.process_iter(["cmdline", "cwd", "status"])
                if p.info["status"] != psutil.STATUS_ZOMBIE and p.info["cwd"] and str(self.folder) in p.info["cwd"]
            ]
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.2)


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


def test_ctrl_c_keeps_what_is_finished_and_the_same_command_continues(checkout: Checkout) -> None:
    long = {"client": {"seconds": 60}}
    checkout.script({"baseline": long, "fp8_kv": long})
    process = checkout.start()
    wait_for(process, "measuring")
    os.killpg(process.pid, signal.SIGINT)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 130, text
    assert "the same command continues" in text
    assert checkout.left_alive() == []
    checkout.script({})
    code, text = checkout.run()
    assert code == 0, text
    assert checkout.run()[0] == 0
    assert checkout.attempts("decode/baseline") + checkout.attempts("decode/fp8_kv") == 3, "nothing is measured twice"


def test_a_killed_snakemake_leaves_nothing_and_its_lock_is_no_obstacle(checkout: Checkout) -> None:
    checkout.script({"baseline": {"client": {"seconds": 60}}, "fp8_kv": {"client": {"seconds": 60}}})
    process = checkout.start()
    wait_for(process, "measuring")
    (snakemake,) = [p for p in psutil.Process(process.pid).children() if "snakemake" in " ".join(p.cmdline())]
    snakemake.kill()
    assert process.communicate(timeout=60) and process.returncode != 0
    assert checkout.left_alive() == []
    checkout.script({})
    code, text = checkout.run()
    assert code == 0, text


def test_a_second_run_in_the_same_folder_is_one_sentence(checkout: Checkout) -> None:
    checkout.script({"baseline": {"client": {"seconds": 8}}})
    first = checkout.start()
    wait_for(first, "starting p0")
    code, text = checkout.run()
    assert code == 2
    assert "another np1d run (process" in text
    assert first.communicate(timeout=120) and first.returncode == 0


def test_a_server_that_dies_is_data_and_the_other_row_is_measured(checkout: Checkout) -> None:
    checkout.script({"baseline": {"server": {"die_after_s": 0.5, "ready_after_s": 30, "say": "no room for 12 slots"}}})
    code, text = checkout.run()
    assert code == 1
    assert checkout.status("decode/baseline")["kind"] == "server_died"
    assert checkout.status("decode/fp8_kv")["status"] == "ok"
    assert "no room for 12 slots" in text
    assert "np1d rerun --failed --yes" in text
