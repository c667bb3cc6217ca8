"""The raw facts of a run: one row a request, one row a chunk, as the client saw them.

Knows nothing of metrics or validity. A column is a field of `RequestRecord` or `ChunkRecord`; its meaning and unit
travel in the Parquet schema. Times are seconds since the pass's t0 (the client's monotonic clock); the pass's t0 on the
monotonic and the wall clock is in `client.json`. A fact that the server did not give is null, never a guess.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from workloads.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd

RECORDS_SCHEMA = "records/1"
REQUESTS_FILE = "requests.parquet"
CHUNKS_FILE = "chunks.parquet"

Phase = Literal["warmup", "measured", "cooldown"]
"""`warmup` comes before t0, `cooldown` keeps the load up until the last measured request ends; neither is a result,
but their token events inside the window count for throughput."""


def _column(meaning: str, unit: str = "") -> Any:
    return dataclasses.field(metadata={"meaning": meaning, "unit": unit})


def _later_column(meaning: str, unit: str = "") -> Any:
    """A column that files of before it lack: reading those gives nulls."""
    return dataclasses.field(default=None, metadata={"meaning": meaning, "unit": unit})


@dataclasses.dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request. `ok` means: an answer ended as the protocol says, with at least one token.

    With `load.cut_cooldown` the client cuts the cooldown of the last pass short once nothing that is measured is left.
    Such an answer is ok, its `finish_reason` is `cut`, and its tokens are those that came.
    """

    pass_index: int = _column("measured pass of the session, from 0")
    phase: str = _column("warmup, measured or cooldown")
    request_index: int = _column("index of the request in its pass, all phases together")
    rid: str = _column("identity sent to the server")
    process: int = _column("client process that sent it")
    group: int | None = _column("shared-prefix group")
    conversation: int | None = _column("conversation of a multi-turn workload")
    turn: int = _column("turn in its conversation, from 0")
    intended_start_s: float = _column("when the load plan wanted it sent", "s")
    start_s: float = _column("when the client began to send it", "s")
    headers_s: float | None = _column("arrival of the response's status line", "s")
    first_token_s: float | None = _column("arrival of the first chunk with a token of any kind", "s")
    first_answer_s: float | None = _column("arrival of the first chunk with a token that is not reasoning", "s")
    last_token_s: float | None = _column("arrival of the last chunk with a token", "s")
    end_s: float = _column("end of the answer or of the failure", "s")
    input_tokens_requested: int | None = _column("prompt length by construction", "tokens")
    input_tokens: int | None = _column("prompt length the server reported", "tokens")
    cached_tokens: int | None = _column("prompt tokens the server did not compute", "tokens")
    shared_tokens: int | None = _column("leading prompt tokens shared with the request's group", "tokens")
    output_tokens_requested: int = _column("output limit asked for", "tokens")
    output_tokens: int | None = _column("output length the server reported", "tokens")
    output_tokens_seen: int | None = _column("output tokens the client counted itself, from ids", "tokens")
    num_chunks: int = _column("chunks that carried tokens")
    first_chunk_tokens: int | None = _column("tokens in the first of them", "tokens")
    finish_reason: str | None = _column("stop, length or abort")
    http_status: int | None = _column("status of the response")
    ok: bool = _column("ended as the protocol says, with at least one token")
    error_kind: str | None = _column(
        "connect, http_status, broken_stream, early_end, error_event, bad_event, no_tokens, "
        "stall, deadline, interrupted"
    )
    error: str | None = _column("one sentence about the error")
    num_verify: int | None = _column("verify steps of speculative decoding")
    accepted_drafts: int | None = _column("drafted tokens accepted")
    accept_length: float | None = _column("output tokens per verify step, as the server reported")
    prefill_worker: str | None = _column("worker that computed the prompt, where the server says so")
    decode_worker: str | None = _column("worker that generated, where the server says so")
    output_text: str | None = _column("the answer, where the workload keeps it")
    transfer_tail_s: float | None = _later_column("from prefill's last chunk to the end of the last write", "s")
    handoff_s: float | None = _later_column("from prefill's last chunk to decode having the request, on one clock", "s")


@dataclasses.dataclass(slots=True, kw_only=True)
class ChunkRecord:
    """One arrival of tokens. `num_tokens` is null when the server does not say how many came."""

    pass_index: int = _column("measured pass of the session, from 0")
    phase: str = _column("phase of the request")
    request_index: int = _column("index of the request in its pass")
    chunk_index: int = _column("index among the request's chunks that carried tokens")
    t_s: float = _column("arrival", "s")
    num_tokens: int | None = _column("new tokens", "tokens")


Record = RequestRecord | ChunkRecord


def schema_of(record_type: type[Record], metadata: dict[str, str] | None = None) -> pa.Schema:
    """The Arrow schema of a record type, with meaning and unit of every column."""
    hints = typing.get_type_hints(record_type)
    fields = [
        pa.field(f.name, *_arrow_type(hints[f.name]), metadata={k: str(v) for k, v in f.metadata.items()})
        for f in dataclasses.fields(record_type)
    ]
    return pa.schema(fields, metadata={"schema": RECORDS_SCHEMA, **(metadata or {})})


def to_table(records: Iterable[Record], record_type: type[Record], metadata: dict[str, str] | None = None) -> pa.Table:
    """Records as an Arrow table. Raises pyarrow.ArrowInvalid for a null where a column has none."""
    schema = schema_of(record_type, metadata)
    rows = list(records)
    columns = {name: [getattr(row, name) for row in rows] for name in schema.names}
    table = pa.table(columns, schema=schema)
    table.validate(full=True)
    for field in schema:
        if not field.nullable and table[field.name].null_count:
            raise pa.ArrowInvalid(f"column {field.name} must not be null")
    return table


def write_records(
    folder: Path,
    requests: Sequence[RequestRecord] | pa.Table,
    chunks: Sequence[ChunkRecord] | pa.Table,
    metadata: dict[str, str] | None = None,
) -> None:
    """Write both files of a run, each atomically."""
    for name, rows, kind in ((CHUNKS_FILE, chunks, ChunkRecord), (REQUESTS_FILE, requests, RequestRecord)):
        table = rows if isinstance(rows, pa.Table) else to_table(rows, kind, metadata)
        write_atomically(folder / name, functools.partial(pq.write_table, table, compression="zstd"))


def read_requests(folder: Path) -> "pd.DataFrame":
    """The requests of a run. Raises ValueError when a column is missing or of another type."""
    return _read(folder / REQUESTS_FILE, RequestRecord)


def read_chunks(folder: Path) -> "pd.DataFrame":
    """The chunks of a run, in order of request and arrival."""
    return _read(folder / CHUNKS_FILE, ChunkRecord)


def frame_of(records: Iterable[Record], record_type: type[Record]) -> "pd.DataFrame":
    """Records as the data frame that reading them back gives."""
    return _to_frame(to_table(records, record_type))


def _read(path: Path, record_type: type[Record]) -> "pd.DataFrame":
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path.parent} holds no run: there is no {path.name}") from None
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path.name} is not a whole Parquet file ({error}); run the session again") from error
    want = schema_of(record_type)
    for field in dataclasses.fields(record_type):
        if field.default is None and field.name not in table.column_names:
            kind = want.field(field.name)
            table = table.append_column(kind, pa.nulls(table.num_rows, kind.type))
    if table.schema.remove_metadata() != want.remove_metadata():
        raise ValueError(f"{path.name} has other columns than {RECORDS_SCHEMA}; it was written by another version")
    return _to_frame(table)


def _to_frame(table: pa.Table) -> "pd.DataFrame":
    import pandas as pd  # here: the load client writes records and never reads them

    nullable = {
        pa.int64(): pd.Int64Dtype(),
        pa.float64(): pd.Float64Dtype(),
        pa.string(): pd.StringDtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    return table.to_pandas(types_mapper=nullable.get)


def _arrow_type(hint: Any) -> tuple[pa.DataType, bool]:
    nullable = isinstance(hint, types.UnionType)
    base = next(a for a in typing.get_args(hint) if a is not type(None)) if nullable else hint
    arrow = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}[base]
    return arrow, nullable
