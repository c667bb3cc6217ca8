"""A data file is there whole and as declared, or one sentence says how it comes."""

import dataclasses
import hashlib
from pathlib import Path

import pytest

from workflows import data
from workflows.catalog import Catalog, load_catalog
from workflows.errors import SessionError, WorkflowError
from workflows.plan import DataNeed
from workflows.schema import DataFile

CONTENT = b'{"question": "1+1?", "answer": "#### 2"}\n'
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def catalog() -> Catalog:
    file = DataFile(what="sums", path="data/sums.jsonl", sha256=DIGEST, url="https://127.0.0.1:9/none", licence="MIT")
    return dataclasses.replace(load_catalog(), data={"sums": file})


def test_a_copy_is_taken_and_then_found(tmp_path: Path, catalog: Catalog) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(CONTENT)
    need = DataNeed(name="sums", path="data/sums.jsonl", sha256=DIGEST)
    with pytest.raises(SessionError, match="is not there; `np1d data sums` downloads it"):
        data.check_data([need], tmp_path)
    assert "licence MIT" in data.bring(catalog, "sums", copy, tmp_path)
    data.check_data([need], tmp_path)
    assert "is there" in data.bring(catalog, "sums", None, tmp_path)


def test_another_file_is_never_taken(tmp_path: Path, catalog: Catalog) -> None:
    (tmp_path / "copy.jsonl").write_bytes(CONTENT + b"\n")
    with pytest.raises(WorkflowError, match="is not sums: its SHA-256 is"):
        data.bring(catalog, "sums", tmp_path / "copy.jsonl", tmp_path)
    assert not (tmp_path / "data").exists()


def test_an_address_that_does_not_answer_has_a_way_out(tmp_path: Path, catalog: Catalog) -> None:
    with pytest.raises(WorkflowError, match="bring the file yourself: `np1d data sums --from FILE`"):
        data.bring(catalog, "sums", None, tmp_path)
