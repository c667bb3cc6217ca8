"""Kernels under compute-sanitizer: every op is covered, and a verdict is clean only where the tool counted nothing."""

import json
import os
import time
from pathlib import Path

import pytest

pytest.importorskip("triton")

from stack.kernels import cuda_source
from stack.kernels.catalog import OPS
from tools.gpu.calls.pack import main as pack
from tools.gpu.micro.checks import checks
from tools.gpu.sanitize.__main__ import (
    FAULTLESS,
    NUM_PLANTED,
    PLANTED,
    Report,
    command,
    errors_in,
    judged,
    obey,
    run_unit,
    working_tool,
)
from tools.gpu.sanitize.planted import SOURCE
from tools.gpu.sanitize.units import ELECTING, Unit, shares_memory, units

COUNTED = "========= ERROR SUMMARY: {} errors\n"
RACE = "========= Error: Race reported between Write access at rows+0x10\n"
LAUNCH = "========= Error: Target application terminated before first instrumented API call\n"


def test_accesses_of_every_checked_implementation_and_races_of_every_source_with_shared_memory_are_covered() -> None:
    chosen = units()
    pairs = {(check.op, impl) for check in checks() for impl in check.impls}
    assert {(unit.op, unit.impl) for unit in chosen if unit.tool == "memcheck"} == pairs
    for op in OPS.values():
        folder = Path(str(OPS["moe"].module("reference").__file__)).parents[1] / op.name
        if any("__shared__" in source.read_text() for source in folder.glob("*.cu")):
            assert any(unit.tool == "racecheck" and unit.op == op.name for unit in chosen), op.name
    first_library = next(i for i, unit in enumerate(chosen) if unit.impl == "deep_gemm")
    assert all(chosen.index(unit) < first_library for unit in chosen if unit.tool != "memcheck")
    assert shares_memory("kda_verify", "cuda_chunk") and not shares_memory("kda_verify", "cuda_chunk_fast")


def test_every_planted_kernel_exists_and_every_tool_is_shown_a_fault() -> None:
    assert {unit.tool for unit in units()} == set(PLANTED)
    for kind, names in PLANTED.items():
        assert any(name not in FAULTLESS for name in names), kind
        assert all(f"planted_{name}(" in SOURCE.read_text() for name in (*names, *FAULTLESS))
    assert sum(map(len, PLANTED.values())) < NUM_PLANTED


def test_only_kernels_whose_lanes_elect_one_are_built_otherwise_and_only_for_a_race_checker_that_needs_it() -> None:
    assert not any(unit.define for unit in units(follows_election=True))
    built = [unit for unit in units(follows_election=False) if unit.define]
    assert {unit.tool for unit in built} == {"racecheck"} and {(unit.op, unit.impl) for unit in built} == ELECTING
    kernels = Path(cuda_source.__file__).parent
    elect = {path.name for path in kernels.rglob("*.cu") if "arrive_for_warp(" in path.read_text()}
    assert elect == {"grouped.cu", "kda_stream_verify.cu"}  # of `ELECTING`


@pytest.mark.parametrize(
    ("log", "found", "code", "verdict"),
    [
        (COUNTED.format(0), ["ok"], 0, "clean"),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", ["ok", "missing"], 0, "clean"),
        ("========= RACECHECK SUMMARY: 2 hazards displayed (2 errors)\n", ["ok"], 9, "ERRORS"),
        (COUNTED.format(3), ["ok"], 9, "ERRORS"),
        (RACE, ["ok"], None, "ERRORS"),
        ("", ["ok"], None, "too slow"),
        (COUNTED.format(0), ["missing"], 0, "missing"),
        (COUNTED.format(0), ["ok", "WRONG"], 1, "checks failed"),
        (COUNTED.format(0), [], 0, "no verdict"),
        (LAUNCH, [], 255, "no verdict"),
        ("", ["ok"], 0, "no verdict"),
    ],
)
def test_a_verdict_says_what_was_seen(
    tmp_path: Path, log: str, found: list[str], code: int | None, verdict: str
) -> None:
    (tmp_path / "log").write_text(f"of the kernels\n{log}")
    rows = [{"case": "3 x 4", "verdict": row, "detail": ""} for row in found]
    (tmp_path / "json").write_text(json.dumps({"checks": rows}))
    assert judged(tmp_path / "log", tmp_path / "json", code)[0] == verdict


def _tool(folder: Path, words: str) -> Path:
    folder.mkdir()
    tool = folder / "compute-sanitizer"
    tool.write_text(f"#!/bin/sh\n{words}\n")
    tool.chmod(0o755)
    return tool


def test_a_version_that_does_not_start_or_sees_nothing_is_passed_over(tmp_path: Path) -> None:
    dead = _tool(tmp_path / "1", "echo '========= Error: no driver'; exit 255")
    blind = _tool(tmp_path / "2", "echo '========= ERROR SUMMARY: 0 errors'")
    sees = 'case "$*" in *clean | *arrivals | *barrier) n=0;; *) n=1;; esac; echo "========= ERROR SUMMARY: $n errors"'
    seeing = _tool(tmp_path / "3", sees)
    report = Report(tmp_path)
    assert working_tool({"1": dead, "2": blind, "3": seeing}, report) == (seeing, {"memcheck", "racecheck"})
    assert [row["verdict"] for row in report.verdicts if row["version"] == "3"].count("not caught") == 1
    assert working_tool({"1": dead, "2": blind}, Report(tmp_path)) == (None, set())


def test_a_unit_whose_time_is_up_is_ended_with_what_it_started_and_late_ones_do_not_begin(tmp_path: Path) -> None:
    began = time.monotonic()
    assert obey(["sh", "-c", "sleep 60 & echo $!; wait"], tmp_path / "log", 0.5) is None
    child = int((tmp_path / "log").read_text())
    while Path(f"/proc/{child}/stat").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() - began < 30
        time.sleep(0.02)
    report = Report(tmp_path)
    run_unit(Path("compute-sanitizer"), 1, Unit("memcheck", "moe", "by_rows"), report, time.monotonic() + 5)
    assert [row["verdict"] for row in report.verdicts] == ["not begun"]
    assert json.loads((tmp_path / "summary.json").read_text()) == report.verdicts


def test_tools_at_once_have_ports_of_their_own() -> None:
    ports = [command(Path("x"), "memcheck", n)[command(Path("x"), "memcheck", n).index("--port") + 1] for n in (0, 1)]
    assert int(ports[1]) - int(ports[0]) >= 10 and errors_in(Path(os.devnull)) is None


def test_the_tool_is_packed_for_the_call_that_takes_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.gpu.calls.pack.ROOT", tmp_path)
    monkeypatch.setattr("tools.gpu.calls.pack.pack_sanitizer", lambda archive: archive.write_bytes(b"packed"))
    monkeypatch.setattr("tools.gpu.calls.pack._write_tree", lambda path: None)
    (tmp_path / "build").mkdir()
    for call, is_there in (("sanitize_1", True), ("kernels_1", False)):
        assert pack([call, "--carry", str(tmp_path), "--without-packages"]) == 0
        assert (tmp_path / "sanitizer.tar.xz").exists() == is_there
