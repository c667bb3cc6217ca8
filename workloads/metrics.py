"""From the records of a session to `metrics.json`: validity first, then the values, never a value of an invalid run.

    python -m workloads.metrics FOLDER [--engine engine.jsonl] [--gpu gpu.jsonl] [--labels labels.json] [--restarts N]

A session's value is a ratio of sums over its passes, or a statistic over all its measured requests. Passes are shown,
never counted as repetitions.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workloads.client_facts import CLIENT_FILE, read_client_facts
from workloads.definitions import METRICS, Given, Metric, mean, percentile, ratio
from workloads.engine_log import EngineView, read_engine_log
from workloads.files import read_json, write_json
from workloads.gpu_samples import read_gpu_samples
from workloads.passes import PassSums, sum_pass
from workloads.records import read_chunks, read_requests
from workloads.slo import Slo
from workloads.spec import Workload, parse
from workloads.validity import Evidence, Validity, judge

METRICS_SCHEMA = "metrics/1"
METRICS_FILE = "metrics.json"


def session_metrics(
    requests: pd.DataFrame,
    chunks: pd.DataFrame,
    client: Mapping[str, Any],
    *,
    engine: EngineView | None = None,
    gpu: Sequence[Mapping[str, Any]] | None = None,
    restarts: int | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """All of metrics.json, from a session's records, the client's facts and what others observed."""
    workload = parse(dict(client["workload"]))
    passes = [
        sum_pass(i, requests[requests["pass_index"] == i], chunks[chunks["pass_index"] == i], workload)
        for i in sorted(requests["pass_index"].unique())
    ]
    evidence = Evidence(
        workload=workload, requests=requests, chunks=chunks, passes=passes, client=client, gpu=gpu, restarts=restarts
    )
    validity = judge(evidence)
    values = session_values(workload, passes, requests, engine, client)
    found = {key: _number(key, given.value) for key, given in values.items()}
    missing = {key: given.reason for key, given in values.items() if given.reason is not None}
    body: dict[str, Any] = {
        "schema": METRICS_SCHEMA,
        "cell": workload.identity.model_dump() | {"workload": workload.name},
        "validity": validity.as_json(),
        "passes": [_pass_json(p) for p in passes],
        "labels": dict(labels or {}),
        "cache": _cache_json(workload, client, values["cached_ratio"]),
        "client": _client_json(client),
        "slo": [_slo_json(slo, found) for slo in workload.slo],
    }
    body["metrics" if validity.is_valid else "diagnostics"] = found
    body["metrics_missing"] = missing
    return body


def session_values(
    workload: Workload,
    passes: Sequence[PassSums],
    requests: pd.DataFrame,
    engine: EngineView | None,
    client: Mapping[str, Any],
) -> dict[str, Given]:
    """Every key of `METRICS`, with its value or the reason why there is none."""
    values = _throughputs(passes) | _latencies(passes) | _counts(workload, passes, requests)
    spans = [(p["t0_monotonic_s"], p["t0_unix_s"]) for p in client["passes"]]
    windows = [p.window for p in passes]
    running, pages = (engine.medians(spans, windows)) if engine else (None, None)
    absent = "the engine's step log was not given" if engine is None else "the engine's step log has none in the window"
    values["running_p50"] = Given(running) if running is not None else Given(None, absent)
    values["pages_used_p50_ratio"] = Given(pages) if pages is not None else Given(None, absent)
    assert set(values) == {metric.key for metric in METRICS}
    return values


def _number(key: str, value: float | None) -> float | int | None:
    return int(value) if value is not None and key.startswith("num_") else value


def _throughputs(passes: Sequence[PassSums]) -> dict[str, Given]:
    seconds = sum(p.window.duration_s for p in passes)

    def rate(counts: list[int | None], absent: str) -> Given:
        if any(count is None for count in counts):
            return Given(None, absent)
        return ratio(sum(c for c in counts if c is not None), seconds, "no request was measured")

    unknown = "the server does not say how many tokens a chunk brought, and requests cross the window's edge"
    steady = [p for p in passes if p.steady_window is not None and p.steady_tokens is not None]
    steady_s = sum(p.steady_window.duration_s for p in steady if p.steady_window)
    return {
        "output_tok_s": rate([p.output_tokens for p in passes], unknown),
        "input_tok_s": rate([p.input_tokens for p in passes], "the server does not report cached tokens"),
        "logical_input_tok_s": rate([p.logical_input_tokens for p in passes], "the server reports no prompt lengths"),
        "requests_s": rate([p.num_ok for p in passes], ""),
        "goodput_requests_s": rate([p.num_good for p in passes], "no service level about single requests is declared"),
        "steady_output_tok_s": ratio(
            sum(p.steady_tokens or 0 for p in steady), steady_s, "the declared concurrency was never reached"
        ),
        "duration_s": Given(seconds),
    }


def _latencies(passes: Sequence[PassSums]) -> dict[str, Given]:
    def pooled(name: str) -> list[float]:
        return [value for p in passes for value in getattr(p, name)]

    nothing = "no request ended well"
    one_chunk = "no answer had a token after its first chunk"
    values: dict[str, Given] = {}
    for name, stem, unit, absent in (
        ("ttft_s", "ttft", "s", nothing),
        ("tpot_ms", "tpot", "ms", one_chunk),
        ("itl_ms", "itl", "ms", "no answer had two chunks with known token counts"),
        ("chunk_gap_ms", "chunk_gap", "ms", "no answer had two chunks"),
        ("e2e_s", "e2e", "s", nothing),
    ):
        sample = pooled(name)
        values[f"{stem}_mean_{unit}"] = mean(sample, absent)
        for percent in (50, 95, 99):
            values[f"{stem}_p{percent}_{unit}"] = percentile(sample, percent) if sample else Given(None, absent)
    values["answer_ttft_mean_s"] = mean(pooled("answer_ttft_s"), nothing)
    values["tpot_pooled_ms"] = ratio(sum(p.tpot_time_ms for p in passes), sum(p.tpot_tokens for p in passes), one_chunk)
    return values


def _counts(workload: Workload, passes: Sequence[PassSums], requests: pd.DataFrame) -> dict[str, Given]:
    ok = requests[requests["ok"] & (requests["phase"] == "measured")]
    attempted = sum(p.num_attempted for p in passes)
    good = [p.num_good for p in passes if p.num_good is not None]
    cached, prompt = ok["cached_tokens"], ok["input_tokens"]
    unknown = cached.isna().any() or prompt.isna().any()
    verified = ok[ok["num_verify"].notna() & (ok["num_verify"] > 0)] if len(ok) else ok
    absent = "the server reports no verify steps"
    return {
        "num_requests": Given(float(sum(p.num_ok for p in passes))),
        "num_attempted": Given(float(attempted)),
        "num_failed": Given(float(attempted - sum(p.num_ok for p in passes))),
        "cached_ratio": Given(None, "the server does not report cached tokens")
        if unknown
        else ratio(float(cached.sum()), float(prompt.sum()), "no request ended well"),
        "accept_length": ratio(float(verified["output_tokens"].sum()), float(verified["num_verify"].sum()), absent)
        if len(verified)
        else Given(None, absent),
        **_handoffs(ok),
        "slo_attainment_ratio": ratio(sum(good), attempted, "no request was measured")
        if good
        else Given(None, "no service level about single requests is declared"),
        "output_tok_s_cv": _noise(passes),
    }


def _handoffs(ok: pd.DataFrame) -> dict[str, Given]:
    sample = [1e3 * seconds for seconds in ok["handoff_s"].dropna()]
    absent = "nothing was handed over, or the two instances do not share a clock"
    return {
        f"handoff_p{percent}_ms": percentile(sample, percent) if sample else Given(None, absent) for percent in (50, 95)
    }


def _noise(passes: Sequence[PassSums]) -> Given:
    rates = [p.output_tokens / p.window.duration_s for p in passes if p.output_tokens and p.window.duration_s]
    if len(rates) < 2:
        return Given(None, "one pass has no spread")
    return Given(float(np.std(rates, ddof=1) / np.mean(rates)))


def _pass_json(p: PassSums) -> dict[str, Any]:
    seconds = p.window.duration_s

    def rate(count: int | None) -> float | None:
        return count / seconds if count is not None and seconds > 0 else None

    return {
        "pass_index": int(p.pass_index),
        "duration_s": seconds,
        "num_attempted": p.num_attempted,
        "num_ok": p.num_ok,
        "output_tok_s": rate(p.output_tokens),
        "input_tok_s": rate(p.input_tokens),
        "logical_input_tok_s": rate(p.logical_input_tokens),
        "ttft_mean_s": float(np.mean(p.ttft_s)) if p.ttft_s else None,
        "tpot_mean_ms": float(np.mean(p.tpot_ms)) if p.tpot_ms else None,
        "concurrency_share": p.concurrency_share,
    }


def _cache_json(workload: Workload, client: Mapping[str, Any], observed: Given) -> dict[str, Any]:
    return {
        "intent": workload.cache.intent,
        "granularity_tokens": workload.cache.granularity_tokens,
        "flush": [p["flush"] for p in client["passes"]],
        "prime": [p["prime"] for p in client["passes"]],
        "cached_tokens_observed": observed.value,
    }


def _client_json(client: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("status", "reason", "num_processes", "location", "sample_body", "ready_s")
    per_pass = (
        "loop_lag_p50_ms",
        "loop_lag_p99_ms",
        "loop_lag_max_ms",
        "client_cpu_s",
        "peak_in_flight",
        "start_gap_s",
        "server_metrics",
    )
    return {key: client.get(key) for key in kept} | {
        "passes": [{key: p.get(key) for key in per_pass} for p in client["passes"]]
    }


def _slo_json(slo: Slo, found: Mapping[str, float | None]) -> dict[str, Any]:
    value = found.get(slo.key)
    return {"slo": str(slo), "value": value, "met": None if value is None else value < slo.bound}


def write_session_metrics(
    folder: Path,
    *,
    out: Path | None = None,
    engine: Sequence[Path] = (),
    gpu: Path | None = None,
    restarts: int | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Read a session's folder and write its metrics.json; returns what was written. Raises ValueError, OSError."""
    body = session_metrics(
        read_requests(folder),
        read_chunks(folder),
        read_client_facts(folder / CLIENT_FILE),
        engine=read_engine_log(engine) if engine else None,
        gpu=read_gpu_samples(gpu) if gpu else None,
        restarts=restarts,
        labels=labels,
    )
    write_json(out or folder / METRICS_FILE, body)
    return body


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m workloads.metrics", description="Write a session's metrics.json.")
    parser.add_argument("folder", type=Path, help="folder with requests.parquet, chunks.parquet and client.json")
    parser.add_argument("--out", type=Path, help="where to write (default: metrics.json in the folder)")
    parser.add_argument("--engine", type=Path, action="append", default=[], help="step log of the engine; repeat")
    parser.add_argument("--gpu", type=Path, help="GPU samples of the session")
    parser.add_argument("--labels", type=Path, help="JSON file with the session's labels")
    parser.add_argument("--restarts", type=int, help="workers that the supervisor saw restart or die")
    parser.add_argument("--strict", action="store_true", help="exit with 5 when the run is INVALID")
    options = parser.parse_args(arguments)
    try:
        body = write_session_metrics(
            options.folder,
            out=options.out,
            engine=options.engine,
            gpu=options.gpu,
            restarts=options.restarts,
            labels=read_json(options.labels) if options.labels else None,
        )
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    verdict = body["validity"]
    sys.stderr.write(f"{verdict['verdict']}{': ' if verdict['reasons'] else ''}{'; '.join(verdict['reasons'])}\n")
    return 5 if options.strict and verdict["verdict"] != "VALID" else 0


__all__ = [
    "METRICS", "METRICS_FILE", "METRICS_SCHEMA", "Given", "Metric", "Validity", "session_metrics", "session_values",
    "write_session_metrics",
]  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main())
