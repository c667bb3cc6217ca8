"""An attempt that was cut off, failed or is invalid never hides the valid result that was there before it."""

from pathlib import Path
from typing import Any

from workflows.standing import restore, settle, take_away
from workloads.files import read_json, write_json

VALID = {"validity": {"verdict": "VALID", "reasons": []}}
INVALID = {"validity": {"verdict": "INVALID", "reasons": ["errors: 3 requests failed"]}}


def _attempt(out: Path, number: int, status: str, key: str = "k") -> dict[str, Any]:
    body = {"status": status, "attempt": f"{number:04}", "key": key, "kind": None, "reason": ""}
    if status != "ok":
        body |= {"kind": "server_died", "reason": "d0 was killed"}
    path = out / "attempts" / f"{number:04}"
    path.mkdir(parents=True)
    if status != "cut off":
        write_json(path / "status.json", body)
        (path / "requests.parquet").write_text(f"records of {number}")
    return body


def _folder(tmp_path: Path) -> Path:
    return tmp_path / "cpu/decode/baseline/sp99_9/s0"


def test_a_cut_off_attempt_gives_the_last_finished_result_back(tmp_path: Path) -> None:
    out = _folder(tmp_path)
    for number, status in ((1, "ok"), (2, "ok"), (3, "failed"), (4, "cut off")):
        _attempt(out, number, status)
    assert restore(tmp_path) == [out]
    assert read_json(out / "status.json")["attempt"] == "0002"
    assert (out / "requests.parquet").read_text() == "records of 2"


def test_a_failure_that_stopped_a_run_is_named_beside_the_result_it_did_not_replace(tmp_path: Path) -> None:
    out = _folder(tmp_path)
    _attempt(out, 1, "ok")
    _attempt(out, 2, "failed")
    restore(tmp_path)
    assert read_json(out / "status.json")["newer"]["reason"] == "d0 was killed"


def test_a_result_taken_away_on_purpose_stays_away(tmp_path: Path) -> None:
    out = _folder(tmp_path)
    _attempt(out, 1, "ok")
    assert restore(tmp_path) == []
    _attempt(out, 2, "failed")
    take_away(out)
    assert restore(tmp_path) == []
    _attempt(out, 3, "cut off")
    assert restore(tmp_path) == [out]


def test_a_result_that_is_there_is_left_alone(tmp_path: Path) -> None:
    out = _folder(tmp_path)
    _attempt(out, 1, "ok")
    _attempt(out, 2, "failed")
    (out / "status.json").write_text("{}")
    assert restore(tmp_path) == []
    assert (out / "status.json").read_text() == "{}"


def test_the_last_valid_attempt_of_the_same_plan_stands_before_an_invalid_one(tmp_path: Path) -> None:
    out = _folder(tmp_path)
    _attempt(out, 1, "ok")
    _attempt(out, 2, "ok", key="another plan")
    status = _attempt(out, 3, "ok")
    write_json(out / "status.json", status)
    body = settle(out, status, INVALID, lambda attempt: VALID | {"of": attempt.name})
    assert (body["of"], body["newer"]["attempt"], body["newer"]["kind"]) == ("0001", "0003", "invalid")
    standing = read_json(out / "status.json")
    assert (standing["attempt"], standing["newer"]["reason"]) == ("0001", "errors: 3 requests failed")
    assert settle(out, standing, VALID, lambda attempt: INVALID)["newer"] == body["newer"]


def test_without_a_valid_attempt_the_newest_stands(tmp_path: Path) -> None:
    out = _folder(tmp_path)
    _attempt(out, 1, "ok")
    status = _attempt(out, 2, "failed")
    assert settle(out, status, INVALID, lambda attempt: INVALID) == INVALID
