"""A session says which commit it ran, on a machine that was given the files without their history, too."""

import subprocess

import pytest

from workflows import provenance
from workloads.files import write_json


def git(folder, *words):
    named = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def checkout(folder, text="one = 1\n"):
    (folder / "stack").mkdir(parents=True)
    (folder / "stack" / "one.py").write_text(text)
    (folder / ".gitignore").write_text("build/\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", f"made in {folder.name}")
    return folder


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """What a checkout packs, and a device's checkout of the same files with a history of its own."""
    monkeypatch.setattr(provenance, "ROOT", checkout(tmp_path / "here"))
    told = provenance.packed()
    device = checkout(tmp_path / "device")
    write_json(device / "build" / "commit.json", told)
    monkeypatch.setattr(provenance, "ROOT", device)
    assert told["commit"] != git(device, "rev-parse", "HEAD")
    return told, device


def test_a_device_with_the_packed_files_records_the_packed_commit(packed):
    told, _ = packed
    assert provenance.code() == {"commit": told["commit"], "diff_sha256": None, "diff_files": []}


@pytest.mark.parametrize("change", ["edit", "new", "gone"])
def test_a_device_with_other_files_does_not_claim_the_packed_commit(packed, change):
    told, device = packed
    name = "stack/new.py" if change == "new" else "stack/one.py"
    if change == "gone":
        (device / name).unlink()
    else:
        (device / name).write_text("two = 2\n")
    found = provenance.code()
    assert found["commit"] == git(device, "rev-parse", "HEAD") and found["diff_files"] == [name]
    assert found["packed_commit"] == told["commit"] and found["differs_from_packed"] == [name]


def test_files_without_any_history_are_the_packed_commit_and_what_differs(packed):
    told, device = packed
    (device / ".git").rename(device / "gone")
    assert provenance.code() == {"commit": told["commit"], "diff_sha256": None, "diff_files": []}
    (device / "stack" / "one.py").write_text("two = 2\n")
    found = provenance.code()
    assert found["commit"] == told["commit"] and found["diff_files"] == ["stack/one.py"] and found["diff_sha256"]


def test_where_the_packed_commit_is_known_the_checkout_speaks_for_itself(tmp_path, monkeypatch):
    here = checkout(tmp_path / "here")
    monkeypatch.setattr(provenance, "ROOT", here)
    write_json(here / "build" / "commit.json", provenance.packed())
    (here / "stack" / "one.py").write_text("two = 2\n")
    git(here, "commit", "-q", "-a", "-m", "later")
    assert provenance.code() == {"commit": git(here, "rev-parse", "HEAD"), "diff_sha256": None, "diff_files": []}


def test_a_module_that_was_never_added_counts_as_a_difference(tmp_path, monkeypatch):
    here = checkout(tmp_path / "here")
    monkeypatch.setattr(provenance, "ROOT", here)
    (here / "stack" / "new.py").write_text("new = 1\n")
    first = provenance.code()
    assert first["diff_files"] == ["stack/new.py"]
    (here / "stack" / "new.py").write_text("new = 2\n")
    assert provenance.code()["diff_sha256"] != first["diff_sha256"]
