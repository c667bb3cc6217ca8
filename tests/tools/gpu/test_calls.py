"""A call to a GPU machine, run here with small real processes: each step gets its turn, what comes back is taken in."""

import io
import json
import tarfile
import tempfile

import pytest

from tests.workflows.test_session import scripted_plan
from tools.gpu.calls import device, pack, run
from tools.gpu.calls.table import read_calls, read_lists
from workflows.catalog import load_catalog
from workflows.housekeeping import take_in
from workflows.resolution import resolve

TABLE = """
small testbed cpu
small fails 100 python no.such.module
small measured 200 session test/row load
small dies 200 session test/row load
small hangs 2 python time_that_hangs
small works 100 python platform
"""


def test_every_step_of_the_table_is_something_that_its_testbed_runs():
    catalog = load_catalog()
    calls = read_calls()
    for call in calls.values():
        assert 0 < sum(step.limit_s for step in call.steps) <= 600, call.name
        for step in call.steps:
            if step.kind == "session":
                row, workload = step.arguments
                assert resolve(catalog, catalog.row(row), call.testbed).status == "runnable", step
                assert workload in catalog.row(row).known_workloads
    measured = {step.arguments[0] for call in calls.values() for step in call.steps if step.kind == "session"}
    for testbed, suites in (("h200x1", ("decode", "drafters")), ("h200x2", ("integrated",))):
        for name, row in catalog.rows.items():
            is_published = row.suite_id in suites and row.row.published and not row.generated
            assert not is_published or resolve(catalog, row, testbed).status != "runnable" or name in measured


@pytest.mark.parametrize(
    "line", ["a step 5 python x", "a testbed cpu\na b five python x", "a testbed cpu\na b 5 shell x"]
)
def test_a_wrong_line_is_named(tmp_path, line):
    (tmp_path / "calls.txt").write_text(line)
    with pytest.raises(ValueError, match=f"line {line.count(chr(10)) + 1}"):
        read_calls(tmp_path / "calls.txt")


def test_a_call_may_need_packages_of_its_own(tmp_path):
    (tmp_path / "calls.txt").write_text("a testbed cpu\na packages one==1 two==2\na works 5 python platform\n")
    call = read_calls(tmp_path / "calls.txt")["a"]
    assert call.packages == ("one==1", "two==2") and [step.name for step in call.steps] == ["works"]


def test_a_step_that_fails_hangs_or_dies_stops_no_other_and_sessions_are_taken_in(tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "time_that_hangs.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # locks of its own: another session may be measuring on this machine
    (tmp_path / "calls.txt").write_text(TABLE)
    carry, out = tmp_path / "carry", tmp_path / "out"
    pack.write_plan(carry, "small", "measured", scripted_plan({}))
    pack.write_plan(carry, "small", "dies", scripted_plan({"exit_code": 3, "die_after_s": 0.2}))
    monkeypatch.setattr(run, "GRACE_S", 3.0)
    monkeypatch.setattr(run, "BUILD", tmp_path / "build")
    code = run.main(
        ["small", "--carry", str(carry), "--out", str(out), "--table", str(tmp_path / "calls.txt"), "--total-s", "600"]
    )
    assert code == 1
    steps = {step["step"]: step for step in json.loads((out / "summary.json").read_text())["steps"]}
    assert [steps[name]["status"] for name in ("fails", "dies", "hangs", "works")] == [
        "exit 1",
        "exit 1",
        "too slow",
        "ok",
    ]
    assert "no.such.module" in steps["fails"]["last"] or "No module named" in steps["fails"]["last"]
    assert len(list(out.iterdir())) <= 8 and not (out / "work").exists()

    came = tmp_path / "came"
    (tmp_path / "whole").write_bytes(b"".join(p.read_bytes() for p in sorted(out.glob("results.tar.xz.*"))))
    with tarfile.open(tmp_path / "whole") as archive:
        archive.extractall(came, filter="data")
    taken = {
        folder.name: json.loads((folder / "status.json").read_text()) for folder in take_in(came, tmp_path / "results")
    }
    assert sorted(status["status"] for status in taken.values()) == ["failed", "ok"]


def test_steps_for_which_no_time_is_left_are_not_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "BUILD", tmp_path / "build")
    (tmp_path / "calls.txt").write_text("late testbed cpu\nlate works 20 python platform\n")
    arguments = ["late", "--carry", str(tmp_path / "carry"), "--out", str(tmp_path / "out"), "--total-s", "10"]
    assert run.main([*arguments, "--table", str(tmp_path / "calls.txt")]) == 1
    (step,) = json.loads((tmp_path / "out" / "summary.json").read_text())["steps"]
    assert step["status"] == "not begun"


def test_a_session_that_would_be_cut_short_is_not_begun_and_the_next_step_has_its_time(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "BUILD", tmp_path / "build")
    table = "late testbed cpu\nlate measured 100 session test/row load\nlate works 100 python platform\n"
    (tmp_path / "calls.txt").write_text(table)
    arguments = ["late", "--carry", str(tmp_path / "carry"), "--out", str(tmp_path / "out"), "--total-s", "115"]
    arguments += ["--table", str(tmp_path / "calls.txt")]
    assert run.main(arguments) == 2 and "pack late" in capsys.readouterr().err and not (tmp_path / "out").exists()
    (tmp_path / "carry" / "plans").mkdir(parents=True)
    (tmp_path / "carry" / "plans" / "late.measured.json").touch()
    assert run.main(arguments) == 1
    steps = json.loads((tmp_path / "out" / "summary.json").read_text())["steps"]
    assert [step["status"] for step in steps] == ["not begun", "ok"]


def test_calls_for_which_no_time_is_left_are_named_and_not_begun(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    table = "".join(f"{name} testbed cpu\n{name} works 20 python platform\n" for name in ("one", "two"))
    (tmp_path / "calls.txt").write_text(table + "both calls one two\n")
    (tmp_path / "carry").mkdir()
    with tarfile.open(tmp_path / "carry" / "tree.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "calls.txt", "calls.txt")
    options = ["--carry", str(tmp_path / "carry"), "--out", str(tmp_path / "out"), "--total-s", "60"]
    assert device.main(["both", *options, "--table", str(tmp_path / "calls.txt")]) == 1
    assert "not begun, for want of time: one, two" in capsys.readouterr().out
    summaries = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summaries == [{"call": "one", "steps": []}, {"call": "two", "steps": []}]


@pytest.mark.parametrize(("line", "sentence"), [("a calls a", "name of its own"), ("b calls a+c", "no call c")])
def test_a_wrong_list_is_named(tmp_path, line, sentence):
    (tmp_path / "calls.txt").write_text(f"a testbed cpu\n{line}\n")
    with pytest.raises(ValueError, match=f"line 2: .*{sentence}"):
        read_lists(tmp_path / "calls.txt")


def test_packages_lie_in_one_folder_and_are_unpacked_anew_only_when_they_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def packed(text: bytes) -> bytes:
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w:xz") as archive:
            entry = tarfile.TarInfo("package.py")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
        return data.getvalue()

    first = run.unpacked(packed(b"one"))
    (first / "seen").touch()
    assert run.unpacked(packed(b"one")) == first and (first / "seen").exists()
    assert run.unpacked(packed(b"two")) == first and (first / "package.py").read_bytes() == b"two"
    assert not (first / "seen").exists()


def test_two_calls_run_beside_each_other_and_one_after_them(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    table = "".join(f"{name} testbed cpu\n{name} works 20 python platform\n" for name in ("left", "right", "after"))
    (tmp_path / "calls.txt").write_text(table)
    (tmp_path / "carry").mkdir()
    pack._write_tree(tmp_path / "carry" / "tree.tar.xz")
    options = [
        "--carry",
        str(tmp_path / "carry"),
        "--out",
        str(tmp_path / "out"),
        "--table",
        str(tmp_path / "calls.txt"),
    ]
    assert device.main(["left+right", "after", *options, "--total-s", "300"]) == 0
    summaries = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [(body["call"], body["steps"][0]["status"]) for body in summaries] == [
        (name, "ok") for name in ("left", "right", "after")
    ]
    names = ["kernels.tar.xz", "results.tar.xz.00", "summary.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    with tarfile.open(tmp_path / "out" / "results.tar.xz.00") as results:
        assert results.getnames() == [f"{name}/works/step.log" for name in ("left", "right", "after")]


def test_a_lane_runs_its_calls_in_turn_and_those_that_share_a_gpu_together(tmp_path, monkeypatch):
    """`late` needs what `early`, which shares with it, leaves only while it runs; `last` is begun after both."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    steps = {
        "early": "touch early; until [ -e late ]; do sleep 0.05; done; sleep 0.3; touch done",
        "late": "until [ -e early ]; do sleep 0.05; done; [ ! -e done ]; touch late",
        "last": "[ -e done ]",
        "other": "true",
    }
    (tmp_path / "tree").mkdir()
    for name, script in steps.items():
        call = f"subprocess.call(['sh', '-ec', {script!r}], cwd={str(meeting)!r})"
        (tmp_path / "tree" / f"step_{name}.py").write_text(f"import subprocess, sys\n\nsys.exit({call})\n")
    table = "".join(f"{name} testbed cpu\n{name} works 20 python step_{name}\n" for name in steps)
    (tmp_path / "calls.txt").write_text(f"{table}early shares\nlate shares\n")
    (tmp_path / "carry").mkdir()
    pack._write_tree(tmp_path / "carry" / "tree.tar.xz")
    with tarfile.open(tmp_path / "carry" / "tree.tar.xz") as archive:
        archive.extractall(tmp_path / "tree", filter="data")
    with tarfile.open(tmp_path / "carry" / "tree.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "tree", ".")
    options = ["--carry", str(tmp_path / "carry"), "--out", str(tmp_path / "out"), "--total-s", "300"]
    assert device.main(["early/late,last+other", *options, "--table", str(tmp_path / "calls.txt")]) == 0


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        (["left", "nothing"], "no call nothing"),
        (["left", "left"], "twice"),
        (["left+right+after"], "at most 2"),
        (["left/right"], "GPU alone"),
    ],
)
def test_a_mistake_in_the_list_of_calls_is_one_sentence(tmp_path, capsys, stages, sentence):
    (tmp_path / "calls.txt").write_text("".join(f"{name} testbed cpu\n" for name in ("left", "right", "after")))
    options = ["--carry", str(tmp_path), "--out", str(tmp_path), "--table", str(tmp_path / "calls.txt")]
    assert device.main([*stages, *options]) == 2
    assert sentence in capsys.readouterr().err
    assert device.main(["left", *options]) == 2 and "nothing is packed" in capsys.readouterr().err


def test_a_lane_runs_the_tree_that_came_with_this_call_and_not_an_earlier_one(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen = []
    for text in ("first", "second"):
        (tmp_path / "what.txt").write_text(text)
        with tarfile.open(tmp_path / "tree.tar.xz", "w:xz") as archive:
            archive.add(tmp_path / "what.txt", "what.txt")
        seen.append((device.Place(0, 0, tmp_path, tmp_path / "what.txt").folder / "what.txt").read_text())
    assert seen == ["first", "second"]
