"""Every step of every call goes as far as it can without a GPU: its words are understood, and select something."""

import argparse
import importlib
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from stack.config import load, parse_settings
from stack.kernels.catalog import OPS
from tools.gpu.calls import pack, run
from tools.gpu.calls.table import Step, names_of, problem_of, read_calls, read_lists
from tools.gpu.micro.variants import implementation
from workflows.catalog import load_catalog
from workflows.resolution import resolve

ROOT = Path(__file__).resolve().parents[3]
CALLS = read_calls()
STEPS = [(call, step) for call in CALLS.values() for step in call.steps]
BROUGHT = {"sanitizer.tar.xz", "routes.safetensors"}
"""Files of `{carry}` that `pack` puts there, or refuses to go without."""


class ParsedError(Exception):
    """Carries what a command line was understood as, in place of what it would have done."""


def steps(kind: str) -> list[pytest.param]:
    return [pytest.param(step, id=f"{call.name}.{step.name}") for call, step in STEPS if step.kind == kind]


def understood(step: Step, carry: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """A Python step's arguments, as its own module reads them."""
    parse = argparse.ArgumentParser.parse_args

    def stop(self: argparse.ArgumentParser, *arguments: object) -> None:
        raise ParsedError(parse(self, *arguments))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    module, *words = (word.replace("{out}", str(out)).replace("{carry}", str(carry)) for word in step.arguments)
    monkeypatch.setattr(sys, "argv", [module, *words])
    with pytest.raises(ParsedError) as caught:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return caught.value.args[0]


@pytest.mark.parametrize("step", steps("python"))
def test_the_words_of_a_python_step_are_understood_and_name_what_is_there(step, tmp_path, monkeypatch):
    for name in BROUGHT:
        (tmp_path / name).touch()
    if len(step.arguments) == 1:  # nothing to understand
        assert callable(importlib.import_module(step.arguments[0]).main)
        return
    options = understood(step, tmp_path, tmp_path, monkeypatch)
    files = [word.removeprefix("{carry}/") for word in step.arguments if word.startswith("{carry}/")]
    assert set(files) <= BROUGHT
    known = {op: {*OPS[op].impls, "reference"} for op in OPS}
    only = [op for op in getattr(options, "only", "").split(",") if op]
    assert set(only) <= known.keys()
    impls = [impl for impl in (getattr(options, "impl", None) or "").split(",") if impl]
    ops = only or list(known)
    assert all(any(implementation(impl) in known[op] for op in ops) for impl in impls), impls
    if step.arguments[0] == "stack.engine.bench":
        config = load(options.config, parse_settings(options.set))
        assert (ROOT / config.model.path / "config.json").exists()


def test_the_selection_of_every_pytest_step_holds_a_test():
    selections = {step.arguments for _, step in STEPS if step.kind == "pytest"}
    commands = {}
    for arguments in sorted(selections):
        (command,) = run.commands_of(ROOT, "", Step("", 0, "pytest", arguments), ROOT)
        commands[" ".join(arguments)] = [*command[command.index("pytest") + 1 :], "--collect-only"]
    script = """
import json, sys, pytest
class Count:
    def pytest_collection_finish(self, session): self.number = len(session.items)
found = {}
for name, words in json.loads(sys.argv[1]).items():
    count = Count()
    code = pytest.main(words, plugins=[count])
    found[name] = [int(code), count.number]
print("FOUND " + json.dumps(found))
"""
    words = [sys.executable, "-c", script, json.dumps(commands)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=280, check=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert found.keys() == commands.keys()
    assert {name: value for name, value in found.items() if value[0] != 0 or value[1] == 0} == {}


@pytest.fixture
def packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of `pack` that leave out what is downloaded."""
    monkeypatch.setattr(pack, "pack_sanitizer", lambda archive: archive.write_bytes(b"packed"))
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "routes.safetensors").touch()
    return ["--carry", str(tmp_path / "carry"), "--build", str(tmp_path / "build"), "--without-packages"]


def test_every_session_has_a_plan_for_its_machine_where_run_looks_for_it(tmp_path, packing):
    assert pack.main([*CALLS, *packing]) == 0
    carry = tmp_path / "carry"
    sessions = {(call.name, step): call.testbed for call, step in STEPS if step.kind == "session"}
    assert len(list((carry / "plans").iterdir())) == len(sessions) > 30
    for (name, step), testbed in sessions.items():
        plan = json.loads(Path(run.commands_of(carry, name, step, tmp_path)[0][-2]).read_text())
        gpus = {gpu for process in plan["processes"] for gpu in process["gpus"]}
        assert gpus == set(range({"h200x1": 1, "h200x2": 2}[testbed])), (name, step)
    assert all((carry / name).exists() for name in (*BROUGHT, "tree.tar.xz", "commit.json"))


def test_calls_whose_rows_run_on_a_cpu_can_be_tried_there(packing):
    catalog = load_catalog()
    rows = {name: [step.arguments[0] for step in call.steps if step.kind == "session"] for name, call in CALLS.items()}
    tried = [
        name
        for name, mine in rows.items()
        if mine
        and not name.endswith("_tp")
        and all(resolve(catalog, catalog.row(row), "cpu").status == "runnable" for row in mine)
    ]
    assert {"decode_optimized", "prefill_baseline", "pair_baseline_0"} <= set(tried)
    assert pack.main([*tried, *packing, "--testbed", "cpu"]) == 0


def test_lists_name_calls_that_fit_their_machine():
    lists = read_lists()
    assert lists
    for name, stages in lists.items():
        assert problem_of(list(stages), CALLS) == ""
        needs_two = any("+" in stage for stage in stages) or any(
            CALLS[call].testbed == "h200x2" for call in names_of(stages)
        )
        assert name.startswith("two_" if needs_two else "one_")
