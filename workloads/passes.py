"""The sums of one measured pass, from which a session's values are ratios. Knows nothing of validity."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from workloads.definitions import e2e_s, spread_gaps_ms, tpot_ms, ttft_s
from workloads.spec import Workload
from workloads.window import Window, concurrency_share, count_tokens, pass_window, steady_window


@dataclasses.dataclass(slots=True, kw_only=True)
class PassSums:
    """What one pass adds to the session's values. Tokens are inside the window; lists are per measured request."""

    pass_index: int
    window: Window
    output_tokens: int | None
    input_tokens: int | None
    """Prompt tokens that were computed: without the cached ones."""
    logical_input_tokens: int | None
    cached_tokens: int | None
    num_attempted: int
    num_ok: int
    concurrency_share: float | None
    steady_window: Window | None
    steady_tokens: int | None
    ttft_s: list[float]
    answer_ttft_s: list[float]
    tpot_ms: list[float]
    tpot_time_ms: float
    tpot_tokens: int
    e2e_s: list[float]
    itl_ms: list[float]
    chunk_gap_ms: list[float]
    num_good: int | None
    """Measured requests that meet every level about single requests; None without such a level."""


def sum_pass(pass_index: int, requests: pd.DataFrame, chunks: pd.DataFrame, workload: Workload) -> PassSums:
    """The sums of one pass's requests and chunks."""
    window = pass_window(requests)
    tokens = count_tokens(requests, chunks, window)
    declared = workload.concurrency
    steady = steady_window(requests, declared) if declared and len(requests) else None
    in_steady = count_tokens(requests, chunks, steady) if steady else None
    measured = requests[requests["phase"] == "measured"]
    sums = PassSums(
        pass_index=pass_index,
        window=window,
        output_tokens=tokens.inside if tokens else None,
        **_input_tokens(requests, window),
        num_attempted=len(measured),
        num_ok=int(measured["ok"].sum()),
        concurrency_share=concurrency_share(requests, window, declared) if declared and len(requests) else None,
        steady_window=steady,
        steady_tokens=in_steady.inside if in_steady else None,
        ttft_s=[], answer_ttft_s=[], tpot_ms=[], tpot_time_ms=0.0, tpot_tokens=0, e2e_s=[], itl_ms=[],
        chunk_gap_ms=[], num_good=None,
    )  # fmt: skip
    _add_latencies(sums, measured[measured["ok"]], chunks, workload)
    return sums


def _input_tokens(requests: pd.DataFrame, window: Window) -> dict[str, int | None]:
    """Prompt tokens of the answers whose first token fell into the window."""
    ok = requests[requests["ok"]]
    inside = ok[window.holds(ok["first_token_s"].to_numpy(dtype=float))]
    logical = None if inside["input_tokens"].isna().any() else int(inside["input_tokens"].sum())
    cached = None if inside["cached_tokens"].isna().any() else int(inside["cached_tokens"].sum())
    computed = None if logical is None or cached is None else logical - cached
    return {"logical_input_tokens": logical, "cached_tokens": cached, "input_tokens": computed}


def _add_latencies(sums: PassSums, ok: pd.DataFrame, chunks: pd.DataFrame, workload: Workload) -> None:
    levels = [slo for slo in workload.slo if slo.statistic == "each"]
    good = 0
    rows: list[Any] = list(ok.itertuples())
    for row in rows:
        values = request_latencies(row)
        for name, sample in (("ttft", sums.ttft_s), ("tpot", sums.tpot_ms), ("e2e", sums.e2e_s)):
            if (value := values[name]) is not None:
                sample.append(value)
        if values["tpot"] is not None:
            sums.tpot_time_ms += 1000 * (row.last_token_s - row.first_token_s)
            sums.tpot_tokens += row.output_tokens - _or(row.first_chunk_tokens, 1)
        if not pd.isna(row.first_answer_s):
            sums.answer_ttft_s.append(row.first_answer_s - row.intended_start_s)
        good += all((value := values[slo.metric]) is None or value < slo.bound for slo in levels)
    sums.num_good = good if levels else None
    _add_gaps(sums, ok, chunks)


def _add_gaps(sums: PassSums, ok: pd.DataFrame, chunks: pd.DataFrame) -> None:
    mine = chunks[chunks["request_index"].isin(ok["request_index"])]
    for _, group in mine.groupby("request_index", sort=False):
        times = group["t_s"].to_numpy(dtype=float)
        sums.chunk_gap_ms += (1000 * np.diff(times)).tolist()
        if group["num_tokens"].notna().all():
            sums.itl_ms += spread_gaps_ms(times.tolist(), group["num_tokens"].to_numpy(dtype=int).tolist())


def request_latencies(row: Any) -> dict[str, float | None]:
    """TTFT (s), TPOT (ms) and E2E (s) of one request row; the origin is its intended start."""
    origin = float(row.intended_start_s)
    first, last = _or(row.first_token_s, None), _or(row.last_token_s, None)
    return {
        "ttft": ttft_s(origin_s=origin, first_token_s=first),
        "tpot": tpot_ms(
            first_token_s=first,
            last_token_s=last,
            output_tokens=_or(row.output_tokens, None),
            first_chunk_tokens=_or(row.first_chunk_tokens, None),
        ),
        "e2e": e2e_s(origin_s=origin, last_token_s=last),
    }


def _or(value: Any, default: Any) -> Any:
    return default if pd.isna(value) else value
