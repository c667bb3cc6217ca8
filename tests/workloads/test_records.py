"""Records: the schema is the dataclass, files are whole or absent, nothing is guessed."""

import dataclasses

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workloads.files import read_json, write_atomically, write_json
from workloads.records import (
    ChunkRecord,
    RequestRecord,
    frame_of,
    read_chunks,
    read_requests,
    schema_of,
    to_table,
    write_records,
)


def make_request(**changes):
    values = {f.name: None for f in dataclasses.fields(RequestRecord)} | {
        "pass_index": 0, "phase": "measured", "request_index": 0, "rid": "r", "process": 0, "turn": 0,
        "intended_start_s": 0.0, "start_s": 0.0, "end_s": 1.0, "output_tokens_requested": 4, "num_chunks": 0,
        "ok": True,
    }  # fmt: skip
    return RequestRecord(**(values | changes))


def make_chunk(**changes):
    values = {"pass_index": 0, "phase": "measured", "request_index": 0, "chunk_index": 0}
    values |= {"t_s": 0.5, "num_tokens": 1}
    return ChunkRecord(**(values | changes))


def test_every_column_has_a_meaning_and_its_type():
    for kind in (RequestRecord, ChunkRecord):
        schema = schema_of(kind)
        assert schema.names == [f.name for f in dataclasses.fields(kind)]
        assert all(field.metadata[b"meaning"] for field in schema)
    assert schema_of(RequestRecord).field("cached_tokens").nullable
    assert schema_of(RequestRecord).field("ok").type == pa.bool_()


def test_records_come_back_as_they_went(tmp_path):
    write_records(tmp_path, [make_request(cached_tokens=3)], [make_chunk(), make_chunk(chunk_index=1, num_tokens=None)])
    requests, chunks = read_requests(tmp_path), read_chunks(tmp_path)
    assert requests["cached_tokens"].tolist() == [3] and requests["input_tokens"].isna().all()
    assert chunks["num_tokens"].isna().tolist() == [False, True]
    assert requests.equals(frame_of([make_request(cached_tokens=3)], RequestRecord))


def test_a_null_where_none_may_be_is_refused():
    with pytest.raises(pa.ArrowInvalid, match="start_s"):
        to_table([make_request(start_s=None)], RequestRecord)


def test_a_run_without_requests_can_be_written(tmp_path):
    write_records(tmp_path, [], [])
    assert len(read_requests(tmp_path)) == 0


def test_a_truncated_file_is_named(tmp_path):
    write_records(tmp_path, [make_request()], [make_chunk()])
    path = tmp_path / "requests.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"requests\.parquet is not a whole Parquet file"):
        read_requests(tmp_path)


def test_other_columns_are_refused(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "requests.parquet")
    with pytest.raises(ValueError, match="other columns"):
        read_requests(tmp_path)


def test_a_file_of_before_the_transfer_columns_is_read_with_nulls(tmp_path):
    write_records(tmp_path, [make_request(handoff_s=0.1)], [make_chunk()])
    path = tmp_path / "requests.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["transfer_tail_s", "handoff_s"]), path)
    assert read_requests(tmp_path).equals(frame_of([make_request()], RequestRecord))


def test_json_refuses_what_is_no_json(tmp_path):
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"\$\.a\[1\]"):
            write_json(tmp_path / "x.json", {"a": [1.0, bad]})
    (tmp_path / "x.json").write_text('{"a": NaN}')
    with pytest.raises(ValueError, match="NaN"):
        read_json(tmp_path / "x.json")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})

    def fail(temporary):
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert read_json(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
