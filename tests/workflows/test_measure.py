"""A session that failed is data with its reason; it never has a value."""

from pathlib import Path

import pytest

from workflows.errors import WorkflowError
from workflows.measure import measure
from workflows.planner import plan_session
from workloads.files import read_json, write_json


def folder_with(tmp_path: Path, status: dict[str, object]) -> Path:
    write_json(tmp_path / "plan.json", plan_session("decode/baseline", "sp99_9", testbed_id="cpu").to_json())
    write_json(tmp_path / "status.json", status)
    return tmp_path


def test_a_failed_session_is_invalid_with_the_reason(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"status": "failed", "kind": "server_died", "reason": "d0 ended with code 1"})
    body = measure(folder)
    assert body["validity"]["verdict"] == "INVALID"
    assert body["validity"]["reasons"] == ["session: server_died: d0 ended with code 1"]
    assert "metrics" not in body
    assert read_json(folder / "metrics.json") == body


def test_a_session_without_its_records_is_invalid(tmp_path: Path) -> None:
    body = measure(folder_with(tmp_path, {"status": "ok", "kind": None, "reason": ""}))
    assert body["validity"]["verdict"] == "INVALID"
    assert body["validity"]["reasons"][0].startswith("session: records: the records cannot be read")


def test_labels_and_conditions_travel_with_the_metrics(tmp_path: Path) -> None:
    body = measure(folder_with(tmp_path, {"status": "failed", "kind": "no_memory", "reason": "too little"}))
    assert body["labels"]["weights"] == "random"
    assert body["conditions"]["published"]["input_len"] == 65536


def test_a_status_that_was_cut_short_is_one_sentence(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"status": "ok", "kind": None, "reason": ""})
    (folder / "status.json").write_text('{"status"')
    with pytest.raises(WorkflowError, match="run the session again"):
        measure(folder)
