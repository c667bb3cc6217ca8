"""A copy of the harness whose plans start scripted servers: the real command, Snakemake and supervisor around them.

`script.json` in the copy says, by row, how the scripted server and client behave, and which value the session yields.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"
PLANNER = f'''
from workflows.catalog import load_catalog
from workflows.plan import Cell, ClientPlan, Limits, Plan, ProcessPlan, Ready
import json, pathlib

def plan_session(row, workload, *, testbed_id, session=0, engine="default", catalog=None, in_turn=None, **_):
    suite, row_id = row.split("/")
    script = json.loads(pathlib.Path("script.json").read_text()).get(row_id, {{}})
    server = ("{{python}}", "{SUPPORT}/scripted_server.py", "{{dir}}/p0.json", "--port", "{{port:p0}}")
    client = ("{{python}}", "{SUPPORT}/scripted_client.py", "{{dir}}/workload.json", "--url",
              "http://127.0.0.1:{{port:p0}}", "--out", "{{dir}}")
    return Plan(
        cell=Cell(testbed=testbed_id, suite=suite, row=row_id, workload=workload, session=session, engine="stack"),
        question="?", metric="output_tok_s", expect=None, published=None, measure_version=1, settings={{}}, parts=(),
        left_out={{}}, labels={{"platform": "cpu"}}, conditions={{"in_turn": in_turn}} if in_turn else {{}},
        model={{"name": "none", "path": ".cache/none", "build": []}},
        processes=(ProcessPlan(name="p0", role="prefill", command=server, ports=("p0",), ready=Ready(path="/health"),
                               files={{"p0.json": {{"children": 1, "detached": 1, **script.get("server", {{}})}}}}),),
        client=ClientPlan(command=client, url_port="p0",
                          workload={{"identity": {{}}, "passes": 3, **script.get("client", {{}})}}),
        limits=Limits(ready_timeout_s=20, deadline_s=60, grace_s=1, port_base=43000),
    )
'''
MEASURE = """
import json, pathlib, sys, zlib
from workflows.standing import settle

def measure(folder):
    status = json.loads((folder / "status.json").read_text())
    body = settle(folder, status, _metrics(folder, status), lambda old: _metrics(old, {"status": "ok"}))
    (folder / "metrics.json").write_text(json.dumps(body))
    return body

def _metrics(folder, status):
    plan = json.loads((folder / "plan.json").read_text())
    facts = folder / "client.json"
    speed = json.loads(facts.read_text())["speed"] if facts.exists() else 1.0
    session = plan["cell"]["session"]
    value = speed * (1 + 0.001 * (zlib.crc32(f"{speed} {session}".encode()) % 5))
    ok = status["status"] == "ok"
    reasons = [] if ok else [f"session: {status['kind']}: {status['reason']}"]
    body = {"validity": {"verdict": "VALID" if ok else "INVALID", "reasons": reasons}, "metric": "output_tok_s",
            "passes": [], "metrics_missing": {}}
    return body | {"metrics" if ok else "diagnostics": {"output_tok_s": value} if ok else {}}

def main(arguments):
    measure(pathlib.Path(arguments[0]))

if __name__ == "__main__":
    main(sys.argv[1:])
"""
BUILD = "def ensure_model(facts): pass\n"


class Checkout:
    """A copy of the harness whose plans start scripted servers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        shutil.copy(ROOT / "Snakefile", folder)
        for name in ("workflows", "workloads", "stack", "reports"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name, source in (("planner", PLANNER), ("measure", MEASURE), ("build", BUILD)):
            (folder / "workflows" / f"{name}.py").write_text(source)
        models = folder / "workflows" / "config" / "models.yaml"
        models.write_text(models.read_text().replace("build: [-m, stack", "build: []  # [-m, stack"))
        self.script({})

    def script(self, content: dict[str, Any]) -> None:
        (self.folder / "script.json").write_text(json.dumps(content))

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "workflows.cli", *arguments]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        text = process.communicate(timeout=280)[0]
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
