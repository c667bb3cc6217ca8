"""A run in the formats of other tools: aiperf's per-request JSON lines, llm-d's benchmark report 0.2.

    python -m workloads.export FOLDER --aiperf records.jsonl --llmd report.json

Values are ours, under their names and units. An INVALID run has no metrics, so it gives no llm-d report; its requests
can still be exported one by one, errors included.
"""

import argparse
import datetime
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pandas as pd

from workloads.client_facts import CLIENT_FILE, read_client_facts
from workloads.files import read_json, write_bytes, write_json
from workloads.metrics import METRICS_FILE
from workloads.passes import request_latencies
from workloads.records import read_requests
from workloads.spec import SpecError, Workload, parse

_PHASES = {"measured": "profiling", "warmup": "warmup", "cooldown": "profiling"}


def aiperf_lines(requests: pd.DataFrame, client: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One record a request, as in aiperf's `profile_export.jsonl`; times in ns and ms."""
    starts = {p["pass_index"]: p["t0_unix_s"] for p in client["passes"]}
    rows: list[Any] = list(requests.itertuples())
    return [_aiperf_line(row, starts[int(row.pass_index)]) for row in rows]


def _aiperf_line(row: Any, t0_unix_s: float) -> dict[str, Any]:
    latency = request_latencies(row)
    values = {
        "time_to_first_token": (_scaled(latency["ttft"], 1000), "ms"),
        "request_latency": (_scaled(latency["e2e"], 1000), "ms"),
        "inter_token_latency": (_scaled(latency["tpot"], 1), "ms"),
        "output_sequence_length": (_int(row.output_tokens), "tokens"),
        "input_sequence_length": (_int(row.input_tokens), "tokens"),
    }
    error = None if row.ok else {"type": row.error_kind, "message": row.error, "code": _int(row.http_status)}
    return {
        "metadata": {
            "session_num": int(row.request_index),
            "x_request_id": row.rid,
            "conversation_id": f"p{row.pass_index}-c{_int(row.conversation)}",
            "turn_index": int(row.turn),
            "request_start_ns": round((t0_unix_s + row.start_s) * 1e9),
            "request_end_ns": round((t0_unix_s + row.end_s) * 1e9),
            "worker_id": f"worker_{row.process}",
            "benchmark_phase": _PHASES[row.phase],
            "was_cancelled": row.error_kind in ("interrupted", "deadline", "stall") if not row.ok else False,
        },
        "metrics": {name: {"value": v, "unit": unit} for name, (v, unit) in values.items() if v is not None},
        "error": error,
    }


def llmd_report(body: Mapping[str, Any], client: Mapping[str, Any], requests: pd.DataFrame) -> dict[str, Any]:
    """The run as a benchmark report 0.2. Raises SpecError for an INVALID run."""
    if "metrics" not in body:
        raise SpecError(f"an INVALID run has no report: {'; '.join(body['validity']['reasons'])}")
    workload, values = parse(dict(client["workload"])), body["metrics"]
    cell = body["cell"]
    began = datetime.datetime.fromtimestamp(client["started_unix_s"], tz=datetime.UTC)
    last = client["passes"][-1]
    ended = datetime.datetime.fromtimestamp(last["t0_unix_s"] + last["duration_s"], tz=datetime.UTC)
    return {
        "version": "0.2",
        "run": {
            "uid": "/".join(str(cell[k]) for k in ("testbed", "suite", "row", "workload", "session")),
            "eid": "/".join(str(cell[k]) for k in ("testbed", "suite")),
            "time": {"start": began.isoformat(), "end": ended.isoformat(), "duration": _duration(ended - began)},
        },
        "scenario": {"load": _llmd_load(workload)},
        "results": {"request_performance": {"aggregate": _llmd_aggregate(values, requests)}},
    }


def _llmd_load(workload: Workload) -> dict[str, Any]:
    source, load = workload.source, workload.load
    config = workload.model_dump(mode="json")
    lengths = {
        "input_seq_len": _fixed(getattr(source, "input_len", None) or 1),
        "output_seq_len": _fixed(getattr(source, "output_len", None) or getattr(source, "reply_len", None) or 1),
    }
    load_shape: dict[str, float] = {"concurrency": workload.concurrency} if workload.concurrency else {}
    if load.kind in ("poisson", "constant"):
        load_shape = {"rate_qps": load.rate_per_s}
    return {
        "metadata": {"description": workload.name},
        "standardized": {
            "tool": "np1d",
            "tool_version": _version(),
            "source": "random" if source.kind in ("random", "shared_prefix", "chat") else "sampled",
            **lengths,
            **load_shape,
        },
        "native": {"config": config},
    }


def _llmd_aggregate(values: Mapping[str, Any], requests: pd.DataFrame) -> dict[str, Any]:
    measured = requests[requests["phase"] == "measured"]
    latency = {
        "time_to_first_token": _statistics(values, "ttft", "s", "s"),
        "time_per_output_token": _statistics(values, "tpot", "ms", "ms/token"),
        "inter_token_latency": _statistics(values, "itl", "ms", "ms/token"),
        "request_latency": _statistics(values, "e2e", "s", "s"),
    }
    rates = {
        "input_token_rate": (values["logical_input_tok_s"], "tokens/s"),
        "output_token_rate": (values["output_tok_s"], "tokens/s"),
        "requests_rate": (values["requests_s"], "queries/s"),
    }
    return {
        "requests": {
            "total": values["num_attempted"],
            "failures": values["num_failed"],
            "input_length": _lengths(measured["input_tokens"]),
            "output_length": _lengths(measured["output_tokens"]),
        },
        "latency": {name: block for name, block in latency.items() if block is not None},
        "throughput": {name: {"units": unit, "mean": v} for name, (v, unit) in rates.items() if v is not None},
    }


def _statistics(values: Mapping[str, Any], stem: str, unit: str, units: str) -> dict[str, Any] | None:
    mean = values[f"{stem}_mean_{unit}"]
    if mean is None:
        return None
    found = {f"p{q}": values[f"{stem}_p{q}_{unit}"] for q in (50, 95, 99)}
    return {"units": units, "mean": mean} | {name: value for name, value in found.items() if value is not None}


def _lengths(tokens: pd.Series) -> dict[str, Any] | None:
    known = tokens.dropna()
    if known.empty:
        return None
    return {"units": "count", "mean": float(known.mean()), "min": int(known.min()), "max": int(known.max())}


def _fixed(length: int) -> dict[str, Any]:
    return {"distribution": "fixed", "value": length}


def _duration(span: datetime.timedelta) -> str:
    return f"PT{span.total_seconds():.3f}S"


def _version() -> str:
    try:
        return importlib.metadata.version("np1d")
    except importlib.metadata.PackageNotFoundError:
        return "source"


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else float(value) * factor


def _int(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m workloads.export", description="Export a run to other formats.")
    parser.add_argument("folder", type=Path, help="folder of a run with its metrics.json")
    parser.add_argument("--aiperf", type=Path, help="file for aiperf-style JSON lines")
    parser.add_argument("--llmd", type=Path, help="file for an llm-d benchmark report 0.2")
    options = parser.parse_args(arguments)
    if not (options.aiperf or options.llmd):
        parser.error("nothing to write; give --aiperf FILE, --llmd FILE or both")
    try:
        client, requests = read_client_facts(options.folder / CLIENT_FILE), read_requests(options.folder)
        if options.aiperf:
            lines = b"".join(orjson.dumps(line) + b"\n" for line in aiperf_lines(requests, client))
            write_bytes(options.aiperf, lines)
        if options.llmd:
            write_json(options.llmd, llmd_report(read_json(options.folder / METRICS_FILE), client, requests))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
