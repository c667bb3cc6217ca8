"""Every key of metrics.json on one session computed by hand, and the layout of the file.

Two slots. Times in seconds since t0; (n) tokens in a chunk:

    A warm-up   sent -1.0  chunks -0.5 (1)  0.5 (1)            input  10, cached  0
    B measured  sent  0.0  chunks  1.0 (1)  1.2 (2)  1.4 (2)   input 100, cached 60, 2 verify steps
    C measured  sent  0.5  chunks  1.0 (2)  2.0 (2)            input 100, cached 20, 2 verify steps
    D cooldown  sent  1.4  chunks  1.9 (1)  2.5 (1)            input  10, cached  0

The window is [0, 2.0]. One token came before it, eleven in it, one after it.
"""

import json
from pathlib import Path

import orjson
import pandas as pd
import pytest
from measuring import make_workload
from record_rows import chunk_rows, request_row

from workloads.definitions import METRICS
from workloads.engine_log import EngineView, read_engine_log
from workloads.files import write_json
from workloads.metrics import session_metrics, write_session_metrics
from workloads.records import ChunkRecord, RequestRecord, frame_of, write_records
from workloads.window import Window, concurrency_share, count_tokens, in_flight, pass_window, steady_window
from workloads.wire import Answer, GenerateWire

TRAFFIC = {
    "A": ("warmup", -1.0, [(-0.5, 1), (0.5, 1)], 10, 0, None),
    "B": ("measured", 0.0, [(1.0, 1), (1.2, 2), (1.4, 2)], 100, 60, 2),
    "C": ("measured", 0.5, [(1.0, 2), (2.0, 2)], 100, 20, 2),
    "D": ("cooldown", 1.4, [(1.9, 1), (2.5, 1)], 10, 0, None),
}
BY_HAND = {
    "output_tok_s": 11 / 2, "input_tok_s": (210 - 80) / 2, "logical_input_tok_s": 210 / 2,
    "steady_output_tok_s": 11 / 2, "requests_s": 1.0, "goodput_requests_s": 0.5, "slo_attainment_ratio": 0.5,
    "ttft_mean_s": 0.75, "answer_ttft_mean_s": 0.75, "tpot_mean_ms": (100 + 500) / 2, "tpot_pooled_ms": 1400 / 6,
    "itl_mean_ms": (4 * 100 + 2 * 500) / 6, "itl_p50_ms": 100.0, "chunk_gap_mean_ms": (200 + 200 + 1000) / 3,
    "e2e_mean_s": (1.4 + 1.5) / 2, "num_requests": 2, "num_attempted": 2, "num_failed": 0, "duration_s": 2.0,
    "cached_ratio": 0.4, "accept_length": 9 / 4, "running_p50": 2.0, "pages_used_p50_ratio": 0.3,
}  # fmt: skip
MISSING = {
    f"{stem}_p{q}_{unit}" for stem, unit in (("ttft", "s"), ("tpot", "ms"), ("e2e", "s"), ("chunk_gap", "ms"))
    for q in (50, 95, 99)
} | {"itl_p95_ms", "itl_p99_ms", "output_tok_s_cv", "handoff_p50_ms", "handoff_p95_ms"}  # fmt: skip


def session(traffic=None, **changes):
    """Requests, chunks and the client's facts of the traffic above."""
    requests, chunks = [], []
    for i, (phase, start, arrivals, size, cached, verify) in enumerate((traffic or TRAFFIC).values()):
        requests.append(
            request_row(i, phase, start, arrivals, input_tokens=size, cached_tokens=cached, num_verify=verify)
        )
        chunks += chunk_rows(i, phase, arrivals)
    workload = make_workload(
        load={"kind": "closed", "concurrency": 2}, requests_per_pass=2, sampling={"ignore_eos": False},
        source={"kind": "random", "input_len": 100, "output_len": 9}, cache={"intent": "natural", "band": [0.0, 1.0]},
        slo=[{"metric": "ttft", "statistic": "each", "bound": 0.8, "unit": "s"}], **changes,
    )  # fmt: skip
    client = {
        "schema": "client/1", "workload": workload.model_dump(mode="json"), "status": "complete", "reason": None,
        "started_unix_s": 1.8e9, "num_processes": 1,
        "passes": [
            {"pass_index": 0, "t0_unix_s": 1.8e9, "t0_monotonic_s": 500.0, "loop_lag_p99_ms": 1.0, "peak_in_flight": 2,
             "peak_in_warmup": 1, "flush": {"status": "ok", "detail": ""}, "duration_s": 2.0,
             "prime": {"num_failed": 0, "num_requests": 0}}
        ],
    }  # fmt: skip
    return frame_of(requests, RequestRecord), frame_of(chunks, ChunkRecord), client


ENGINE = EngineView(
    [{"t_s": 500.0 + t, "kind": "decode", "running": n, "pages_used": p, "pages_total": 10}
     for t, n, p in ((-0.1, 9, 9), (0.5, 2, 3), (1.0, 2, 3), (1.5, 3, 4), (2.2, 9, 9))]
)  # fmt: skip


def test_every_key_has_the_value_computed_by_hand():
    body = session_metrics(*session(), engine=ENGINE)
    assert body["validity"]["verdict"] == "VALID", body["validity"]["reasons"]
    values = body["metrics"]
    assert {k: v for k, v in values.items() if v is not None} == {k: pytest.approx(v) for k, v in BY_HAND.items()}
    assert set(body["metrics_missing"]) == MISSING
    assert set(BY_HAND) | MISSING == {metric.key for metric in METRICS} == set(values)


def test_percentiles_come_with_their_sample():
    traffic = {str(i): ("measured", 0.0, [(0.001 * i, 1), (1.0 + 0.001 * i, 1)], 10, 0, None) for i in range(1, 201)}
    values = session_metrics(*session(traffic))["diagnostics"]
    assert values["ttft_p50_s"] == pytest.approx(0.1005) and values["ttft_p95_s"] == pytest.approx(0.19005)
    assert values["ttft_p99_s"] is None and values["tpot_p95_ms"] == pytest.approx(1000)
    assert values["e2e_p95_s"] == pytest.approx(1.19005) and values["chunk_gap_p95_ms"] == pytest.approx(1000)


def test_handoffs_count_where_both_instances_share_a_clock():
    requests, chunks, client = session({str(i): ("measured", 0.0, [(0.1, 1), (1.0, 1)], 10, 0, None) for i in range(5)})
    handoffs_s = []
    for arrived_s in (10.002, 10.003, 10.004, 10.005, 10.006, 8.0, 99.0):  # the last two are of another clock
        answer = Answer()
        timing = {"transfer_tail_s": 0.001, "transfer_last_at_s": 10.0, "transfer_arrived_at_s": arrived_s}
        meta = {"completion_tokens": 1, "finish_reason": "stop", "timing": timing | {"transfer_s": 0.5}}
        GenerateWire(make_workload()).read(orjson.dumps({"meta_info": meta}), answer)
        handoffs_s.append(answer.handoff_s)
        assert answer.transfer_tail_s == 0.001
    assert handoffs_s == [*map(pytest.approx, (0.002, 0.003, 0.004, 0.005, 0.006)), None, None]
    requests["handoff_s"] = handoffs_s[:5]
    body = session_metrics(requests, chunks, client)
    assert (body.get("metrics") or body["diagnostics"])["handoff_p50_ms"] == pytest.approx(4.0)
    assert body["metrics_missing"]["handoff_p95_ms"] == "too few requests: 5 of 200"


def test_token_events_decide_what_is_inside():
    requests, chunks, _ = session()
    window = pass_window(requests)
    assert (window.start_s, window.end_s) == (0.0, 2.0)
    count = count_tokens(requests, chunks, window)
    assert (count.before, count.inside, count.after) == (1, 11, 1)


def test_unknown_chunk_counts_are_no_guess():
    requests, chunks, _ = session()
    chunks["num_tokens"] = pd.array([pd.NA] * len(chunks), dtype="Int64")
    assert count_tokens(requests, chunks, Window(-2.0, 3.0)).inside == 13, "whole requests inside are known"
    assert count_tokens(requests, chunks, Window(0.0, 2.0)) is None
    assert count_tokens(requests, chunks, Window(0.6, 3.0)).before == 2


def test_concurrency_over_time():
    requests, _, _ = session()
    times, level = in_flight(requests)
    assert times.tolist() == [-1.0, 0.0, 0.5, 0.5, 1.4, 1.4, 2.0, 2.5] and level.tolist() == [1, 2, 1, 2, 1, 2, 1, 0]
    assert concurrency_share(requests, Window(0.0, 2.0), 2) == pytest.approx(1.0)
    assert concurrency_share(requests, Window(-1.0, 3.0), 2) == pytest.approx(0.5)
    assert steady_window(requests, 2) == Window(0.0, 2.0) and steady_window(requests, 3) is None


def test_an_open_loop_measures_from_the_intended_start():
    requests, chunks, client = session()
    late = requests.copy()
    late.loc[late["phase"] == "measured", "intended_start_s"] -= 0.25
    values = session_metrics(late, chunks, client)["diagnostics"]
    assert values["ttft_mean_s"] == pytest.approx(1.0) and values["e2e_mean_s"] == pytest.approx(1.7)


def test_the_engines_log_is_joined_by_either_clock(tmp_path):
    wall = EngineView([line | {"t_s": line["t_s"] - 500.0 + 1.8e9} for line in ENGINE.lines])
    spans, windows = [(500.0, 1.8e9)], [Window(0.0, 2.0)]
    assert wall.medians(spans, windows) == ENGINE.medians(spans, windows) == (2.0, pytest.approx(0.3))
    path = tmp_path / "engine.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in ENGINE.lines) + '{"t_s": 5')
    assert len(read_engine_log([path]).lines) == 5, "a line cut short at the end is left out"


def test_an_invalid_run_has_diagnostics_and_no_metrics(tmp_path):
    requests, chunks, client = session()
    write_records(tmp_path, [], [])
    requests.loc[1, "ok"] = False
    requests.loc[1, "error_kind"] = "connect"
    body = session_metrics(requests, chunks, client | {"status": "interrupted", "reason": "by hand"})
    assert "metrics" not in body and body["validity"]["verdict"] == "INVALID"
    assert body["validity"]["reasons"][0] == "complete: the client ended as interrupted (by hand)"
    assert body["diagnostics"]["num_failed"] == 1


def test_a_run_without_a_request_is_invalid_and_strict(tmp_path):
    _, _, client = session()
    write_records(tmp_path, [], [])
    write_json(tmp_path / "client.json", client | {"passes": []})
    body = write_session_metrics(tmp_path, labels={"weights": "random"})
    assert body["validity"]["verdict"] == "INVALID" and body["labels"] == {"weights": "random"}
    assert Path(tmp_path / "metrics.json").is_file()


def test_every_rule_shows_value_limit_verdict_source_and_reason():
    rules = session_metrics(*session())["validity"]["rules"]
    assert len(rules) == len({rule["rule"] for rule in rules}) == 21
    for rule in rules:
        assert set(rule) == {"rule", "verdict", "value", "limit", "source", "reason"}
        assert (rule["reason"] == "") == (rule["verdict"] == "pass")
