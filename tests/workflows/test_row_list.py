"""The report learns from a file what cannot run on its testbed, in the words of `np1d list`."""

import dataclasses
import json
from pathlib import Path

import pytest

from reports.claims import Cell
from reports.results import load_results
from workflows.catalog import load_catalog
from workflows.resolution import resolve
from workflows.row_list import main, row_list
from workflows.schema import Mechanism
from workloads.files import write_json


def test_the_report_reads_what_the_list_says(tmp_path: Path) -> None:
    assert main(["--testbed", "cpu", "--out", str(tmp_path / "rows.json")]) == 0
    results = load_results(tmp_path)
    said = resolve(load_catalog(), load_catalog().row("prefill/cp_bcg"), "cpu")
    assert results.absence(Cell("prefill", "cp_bcg", "prefill_only")) == ("not applicable", said.reason)
    assert results.absence(Cell("decode", "fp8_kv", "sp99_9"))[0] == "not run"
    unbuilt = {**load_catalog().mechanisms, "mtp": Mechanism(what="drafts", not_built="nobody wrote it")}
    rows = row_list(dataclasses.replace(load_catalog(), mechanisms=unbuilt), "cpu", "default")
    write_json(tmp_path / "rows.json", {"rows": rows})
    state, reason = load_results(tmp_path).absence(Cell("decode", "fp8_kv_mtp516", "sp99_9"))
    assert state == "not built" and "mtp (nobody wrote it)" in reason


def test_a_list_that_is_missing_or_torn_calls_no_row_impossible(tmp_path: Path) -> None:
    assert load_results(tmp_path).impossible == {}
    (tmp_path / "rows.json").write_text('{"rows": {"prefill/cp_b')
    assert load_results(tmp_path).impossible == {}
    (tmp_path / "rows.json").write_text(json.dumps({"rows": {"prefill/cp_bcg": "no"}}))
    assert load_results(tmp_path).impossible == {}


def test_an_unknown_testbed_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--testbed", "cpu2", "--out", str(tmp_path / "rows.json")]) == 2
    assert capsys.readouterr().err.startswith("error: there is no testbed cpu2")
