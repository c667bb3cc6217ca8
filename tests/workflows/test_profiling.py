"""A trace that was made elsewhere stands beside its row, and what is none is refused."""

import json
from pathlib import Path

import pytest

from workflows.errors import WorkflowError
from workflows.profiling import take_in_routes, take_in_trace

TRACE = {
    "profile": {"decode": {"steps": 6, "kernels": {}}},
    "impls": {"moe": "by_rows"},
    "doubts": [],
    "max_running": 9,
}


def test_the_last_trace_of_a_log_is_taken_in(tmp_path: Path) -> None:
    log = tmp_path / "step.log"
    log.write_text(f'ready\n{{"warm": 1}}\n{json.dumps(TRACE)}\n{{ "cut')
    path = take_in_trace("decode/baseline", "", "h200x1", tmp_path / "results", log)
    assert path == tmp_path / "results/h200x1/decode/baseline/sp99_9/kernels.json"
    body = json.loads(path.read_text())
    assert body["schema"] == "kernels/1" and body["profile"] == TRACE["profile"] and body["impls"] == TRACE["impls"]


def test_a_log_without_a_trace_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "step.log").write_text('{"input_tok_s": 1}\n')
    for source in (tmp_path / "step.log", tmp_path / "absent.log"):
        with pytest.raises(WorkflowError, match=r"profile-steps|cannot be read"):
            take_in_trace("decode/baseline", "", "h200x1", tmp_path / "results", source)


def test_a_file_that_holds_no_routes_is_refused_in_the_engines_words(tmp_path: Path) -> None:
    (tmp_path / "routes").write_text("no routes")
    with pytest.raises(WorkflowError, match="cannot be read as routes"):
        take_in_routes("h200x1", tmp_path, tmp_path / "routes")
