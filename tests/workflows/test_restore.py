"""An interrupted attempt never hides the result that was there before it."""

import json

from workflows.attempt import restore_finished


def _attempt(folder, number, status):
    path = folder / "attempts" / f"{number:04}"
    path.mkdir(parents=True)
    if status:
        (path / "status.json").write_text(json.dumps({"status": status, "attempt": path.name}))


def test_a_cut_off_attempt_gives_the_last_finished_result_back(tmp_path):
    folder = tmp_path / "cpu/decode/baseline/sp99_9/s0"
    for number, status in ((1, "ok"), (2, "ok"), (3, "failed"), (4, None)):
        _attempt(folder, number, status)
    assert restore_finished(tmp_path) == [folder]
    assert json.loads((folder / "status.json").read_text())["attempt"] == "0002"


def test_a_result_taken_away_on_purpose_stays_away(tmp_path):
    _attempt(tmp_path / "cpu/decode/baseline/sp99_9/s0", 1, "ok")
    assert restore_finished(tmp_path) == []


def test_a_result_that_is_there_is_left_alone(tmp_path):
    folder = tmp_path / "cpu/decode/baseline/sp99_9/s0"
    _attempt(folder, 1, "ok")
    _attempt(folder, 2, "failed")
    (folder / "status.json").write_text("{}")
    assert restore_finished(tmp_path) == []
    assert (folder / "status.json").read_text() == "{}"
