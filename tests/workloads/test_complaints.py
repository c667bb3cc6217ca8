"""What users of other harnesses complain about, each as a test on a real server that misbehaves in that way.

The number in a test's name is the complaint's number in the table of `docs/complaints.md`.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from fault_server import Script, serve
from measuring import make_workload

from workloads import metrics, peers, wire
from workloads.client import Target, run_workload
from workloads.files import read_json
from workloads.metrics import write_session_metrics
from workloads.records import read_requests
from workloads.spec import SpecError, names, parse, resolve

SHARED = {"kind": "shared_prefix", "input_len": 128, "output_len": 8, "shared_ratio": 0.5, "groups": 2}


# A. Wrong numbers from tokens and chunks


def test_01_tpot_and_chunk_gap_are_two_metrics_with_two_names(measure):
    run = measure(
        Script(tokens_per_chunk=3, chunk_gap_s=0.03),
        source={"kind": "random", "input_len": 64, "output_len": 30},
        load={"kind": "closed", "concurrency": 2},
    )
    assert run.values["tpot_mean_ms"] == pytest.approx(10, rel=0.08)
    assert run.values["chunk_gap_mean_ms"] == pytest.approx(30, rel=0.08)
    assert run.values["itl_mean_ms"] == pytest.approx(10, rel=0.08)
    assert {"tpot_mean_ms", "itl_mean_ms", "chunk_gap_mean_ms"} <= {m.key for m in metrics.METRICS}


def test_02_an_early_stop_counts_its_own_tokens_and_is_invalid(measure):
    run = measure(
        Script(stop_after=40, chunk_gap_s=0.001), source={"kind": "random", "input_len": 8, "output_len": 128}
    )
    assert set(run.requests["output_tokens"]) == {40}
    assert run.verdict == "INVALID" and run.failed == {"output_length"}
    assert "20 of 20 answers have another length" in run.reasons
    row = run.requests.iloc[0]
    by_hand = 1000 * (row.last_token_s - row.first_token_s) / 39
    assert run.body["diagnostics"]["tpot_mean_ms"] == pytest.approx(by_hand, rel=0.25)


@pytest.mark.parametrize("usage", ["final", "final_with_choice", "running"])
def test_03_usage_in_a_final_chunk_without_text_is_the_count(measure, usage):
    run = measure(Script(usage=usage, stop_after=5), endpoint="completions", sampling={"ignore_eos": False})
    assert run.verdict == "VALID", run.reasons
    assert set(run.requests["output_tokens"]) == {5}
    assert set(run.requests["num_chunks"]) == {5}


def test_04_tokens_of_all_requests_are_the_workers_tokens(measure):
    run = measure(Script(num_workers=4))
    ready = 4  # the readiness generation
    assert run.requests["output_tokens"].sum() + ready == run.server.seen.tokens_sent
    assert sum(run.server.seen.worker_tokens.values()) == run.server.seen.tokens_sent
    assert run.chunks["num_tokens"].sum() == run.requests["output_tokens"].sum()


def test_05_a_hundred_spaces_are_a_hundred_tokens(measure):
    run = measure(
        Script(text_of_token=" ", chunk_gap_s=0.0005), source={"kind": "random", "input_len": 8, "output_len": 100}
    )
    assert set(run.requests["output_tokens"]) == {100} and run.verdict == "VALID"


def test_06_one_request_under_the_formula_of_each_peer():
    # sent at 0; tokens at 0.5 (1), 0.8 (3), 1.1 (3): 7 tokens in 3 chunks; the end at 1.1
    one = peers.OneRequest(start_s=0.0, chunk_times_s=(0.5, 0.8, 1.1), chunk_tokens=(1, 3, 3), end_s=1.1)
    assert peers.ours_tpot_ms(one) == pytest.approx(600 / 6)
    assert peers.sglang_tpot_ms(one) == pytest.approx(600 / 6)
    assert peers.guidellm_tpot_ms(one) == pytest.approx(1100 / 7)
    assert peers.aiperf_itl_ms(one) == pytest.approx(600 / 6)
    assert peers.vllm_itl_ms(one) == pytest.approx([300, 300])
    assert peers.sglang_itl_ms(one) == pytest.approx([100] * 6)
    first_carries_two = peers.OneRequest(start_s=0.0, chunk_times_s=(0.5, 0.8), chunk_tokens=(2, 2), end_s=0.8)
    assert peers.ours_tpot_ms(first_carries_two) == pytest.approx(150)
    assert peers.sglang_tpot_ms(first_carries_two) == pytest.approx(100)


def test_07_prompts_have_exactly_the_length_asked_for(measure):
    run = measure(source={"kind": "random", "input_len": 333, "output_len": 4})
    readiness, *traffic = (len(body["input_ids"]) for body in run.server.seen.bodies)
    assert set(traffic) == {333} and readiness <= 128
    assert set(run.requests["input_tokens"]) == {333} and run.verdict == "VALID"


def test_08_a_server_that_counts_a_longer_prompt_is_invalid(measure):
    run = measure(Script(input_inflation=1.07), source={"kind": "random", "input_len": 100, "output_len": 4})
    assert run.failed == {"input_length"}
    assert "the server counts 107 prompt tokens where 100 were sent" in run.reasons


def test_09_the_first_token_may_be_reasoning(measure, tmp_path):
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("".join(json.dumps({"question": f"What is {i}?", "answer": f"#### {i}"}) + "\n" for i in range(9)))
    run = measure(
        Script(reasoning_tokens=4, chunk_gap_s=0.02),
        endpoint="chat",
        source={"kind": "gsm8k", "path": str(path), "shots": 1, "output_len": 8},
        cache={"intent": "natural"},
        load={"kind": "closed", "concurrency": 1},
        requests_per_pass=6,
        passes=1,
    )
    assert run.verdict == "VALID", run.reasons
    assert run.values["answer_ttft_mean_s"] - run.values["ttft_mean_s"] == pytest.approx(0.08, rel=0.15)


def test_10_an_event_split_by_the_network_is_one_event(measure):
    run = measure(Script(split_writes=7, comments=True, crlf=True, text_of_token="é"))
    assert run.verdict == "VALID", run.reasons
    assert set(run.requests["output_tokens"]) == {8}


def test_11_all_tokens_in_one_chunk_have_no_tpot(measure):
    run = measure(Script(tokens_per_chunk=100), source={"kind": "random", "input_len": 8, "output_len": 100})
    assert run.values["tpot_mean_ms"] is None and run.values["tpot_pooled_ms"] is None
    assert run.body["metrics_missing"]["tpot_mean_ms"] == "no answer had a token after its first chunk"
    assert run.values["output_tok_s"] > 0


def test_12_a_prefill_without_second_token_is_strict_json(measure):
    run = measure(source={"kind": "random", "input_len": 4096, "output_len": 1})
    assert run.verdict == "VALID" and run.values["tpot_mean_ms"] is None
    read_json(run.folder / "metrics.json")


def test_12_no_success_at_all_is_strict_json(measure):
    run = measure(Script(fail_every=1))
    assert run.failed >= {"errors"}
    text = (run.folder / "metrics.json").read_text()
    assert "NaN" not in text and "Infinity" not in text
    found = read_json(run.folder / "metrics.json")["diagnostics"]
    assert found["ttft_mean_s"] is None and found["tpot_mean_ms"] is None and found["cached_ratio"] is None
    assert found["num_failed"] == 20 and found["num_requests"] == 0


# B. Cache state and warm-up


def test_13_the_same_cell_twice_on_one_server_is_invalid_without_a_flush(measure):
    with serve(Script(cache_page=16)) as server:
        first = measure(server=server, cache={"flush": "never"})
        again = measure(server=server, cache={"flush": "never"})
        other = measure(server=server, cache={"flush": "never"}, identity={"row": "unit", "session": 1})
        flushed = measure(server=server)
    assert first.verdict == "VALID", first.reasons
    assert again.failed == {"cached_ratio"}
    assert other.verdict == "VALID", "another session has other prompts"
    assert flushed.verdict == "VALID", flushed.reasons


def test_13_every_row_session_and_pass_has_prompts_of_its_own():
    seeds = {
        make_workload(identity={"row": row, "session": session}).seed("pass", number)
        for row in ("a", "b")
        for session in (0, 1)
        for number in (0, 1)
    }
    assert len(seeds) == 8


def test_14_every_point_of_a_sweep_has_the_declared_hits(measure):
    with serve(Script(cache_page=16)) as server:
        for concurrency in (1, 2, 4, 8):
            run = measure(
                server=server,
                source=SHARED,
                cache={"intent": "primed"},
                load={"kind": "closed", "concurrency": concurrency},
                identity={"row": f"c{concurrency}", "session": 0},
            )
            assert run.verdict == "VALID", run.reasons
            assert run.values["cached_ratio"] == pytest.approx(0.5)


def test_14_a_sweep_without_flush_or_priming_leaves_the_band(measure):
    run = measure(Script(cache_page=16, caches=False), source=SHARED, cache={"intent": "primed"})
    assert run.failed == {"cached_ratio"}


def test_15_the_cache_protocol_is_in_the_result(measure):
    run = measure()
    cache = run.body["cache"]
    assert cache["intent"] == "cold" and cache["cached_tokens_observed"] == 0
    assert [f["status"] for f in cache["flush"]] == ["ok"]


def test_15_environment_variables_change_nothing(measure, monkeypatch):
    monkeypatch.setenv("SGLANG_IS_IN_CI", "true")
    monkeypatch.setenv("CI", "true")
    run = measure(cache={"flush": "never"})
    assert run.server.seen.num_flushes == 0


def test_16_a_busy_flush_is_tried_again_and_recorded(measure):
    run = measure(Script(flush_busy=2))
    assert run.verdict == "VALID" and run.body["cache"]["flush"][0]["attempts"] == 3
    assert run.server.seen.num_flushes == 1


def test_16_a_flush_that_stays_busy_is_invalid(measure):
    run = measure(Script(flush_busy=-1), cache={"flush_timeout_s": 0.6})
    assert run.failed == {"flush"} and "requests are running" in run.reasons


def test_16_a_server_without_flush_is_invalid(measure):
    run = measure(Script(has_flush=False))
    assert run.failed == {"flush"} and "404" in run.reasons


def test_17_a_second_cache_that_survives_the_flush_is_caught(measure):
    with serve(Script(cache_page=16, second_tier=True)) as server:
        first = measure(server=server)
        again = measure(server=server)
    assert first.verdict == "VALID"
    assert again.body["cache"]["flush"][0]["status"] == "ok" and again.failed == {"cached_ratio"}


def test_18_the_flush_ends_before_t0(measure):
    run = measure(Script(flush_s=1.0))
    assert run.body["cache"]["flush"][0]["seconds"] >= 1.0
    assert run.values["duration_s"] < 0.9
    assert run.client["passes"][0]["start_gap_s"] < 0.05


@pytest.mark.parametrize("handover", [True, False])
def test_19_warm_up_keeps_to_the_declared_concurrency(measure, handover):
    run = measure(
        load={"kind": "closed", "concurrency": 3, "handover": handover, "keep_full": handover}, warmup_requests=9
    )
    assert run.server.seen.peak_in_flight == 3
    rule = next(r for r in run.body["validity"]["rules"] if r["rule"] == "warmup_concurrency")
    assert rule["verdict"] == "pass" and rule["value"] == 3


def test_20_the_burst_of_the_start_is_not_in_p99(measure):
    def ttft_of(n):  # the readiness generation, then a burst of 128, are slow; p99 of the rest is 0.8
        return 2.0 if n <= 128 else 0.8 if n % 20 == 0 else 0.4

    run = measure(
        Script(ttft_of=ttft_of, caches=False),
        source={"kind": "random", "input_len": 8, "output_len": 1},
        load={"kind": "closed", "concurrency": 128},
        requests_per_pass=1000,
        limits={"min_concurrency_share": 0.0},  # server and client share one interpreter here
    )
    measured = run.requests[run.requests["phase"] == "measured"]
    truth = np.percentile([run.server.seen.ttft_s[rid] for rid in measured["rid"]], 99)
    assert truth < 1.5, "the burst was absorbed by the warm-up"
    assert run.values["ttft_p99_s"] == pytest.approx(truth, rel=0.1)


def test_21_tokens_before_inside_and_after_are_all_tokens(measure):
    from workloads.window import count_tokens, pass_window

    run = measure(Script(chunk_gap_s=0.005), load={"kind": "closed", "concurrency": 4})
    count = count_tokens(run.requests, run.chunks, pass_window(run.requests))
    assert count.before + count.inside + count.after == run.requests["output_tokens"].sum()
    assert count.before > 0 and count.inside > 0
    assert run.values["output_tok_s"] == pytest.approx(count.inside / run.values["duration_s"])


def test_22_server_counters_that_disagree_are_dropped_with_a_reason(measure):
    target = Target(url="", metrics_urls=("itself",))
    fine = measure(Script(), target=target)
    late = measure(Script(counter_lag=5), target=target)
    assert fine.client["passes"][0]["server_metrics"]["usable"]
    report = late.client["passes"][0]["server_metrics"]
    assert not report["usable"] and "the server counted" in report["reason"]


def test_23_every_pass_is_shown_beside_the_session_value(measure):
    run = measure(passes=3)
    assert [p["pass_index"] for p in run.body["passes"]] == [0, 1, 2]
    seconds = sum(p["duration_s"] for p in run.body["passes"])
    tokens = sum(p["output_tok_s"] * p["duration_s"] for p in run.body["passes"])
    assert run.values["output_tok_s"] == pytest.approx(tokens / seconds), "a ratio of sums, not a mean of ratios"
    assert run.values["output_tok_s_cv"] >= 0


# C. The client is the bottleneck, or lies about load


def test_24_a_client_that_cannot_keep_up_says_so(measure, monkeypatch):
    read = wire.GenerateWire.read

    def slow(self, payload, answer):
        time.sleep(0.012)
        return read(self, payload, answer)

    monkeypatch.setattr(wire.GenerateWire, "read", slow)
    run = measure(limits={"max_loop_lag_p99_ms": 5.0})
    assert "client_bound" in run.failed and "the client is the bottleneck" in run.reasons


HOG = "while True: pass"


def test_24_a_client_that_others_keep_from_the_processors_is_invalid(tmp_path):
    """Two loops hold the one processor that the client may use, and it has the lowest priority."""
    workload = make_workload(limits={"max_loop_lag_p99_ms": 50.0})
    (tmp_path / "w.json").write_text(workload.model_dump_json())
    cpu = min(os.sched_getaffinity(0))
    with serve(Script(chunk_gap_s=0.05)) as server:
        command = [sys.executable, "-m", "workloads.client", tmp_path / "w.json", "--url", server.url]
        client = subprocess.Popen([*command, "--out", tmp_path / "out"])
        while len(server.seen.bodies) < 5:  # the readiness generation, and the load
            assert client.poll() is None
            time.sleep(0.01)
        os.sched_setaffinity(client.pid, {cpu})
        os.setpriority(os.PRIO_PROCESS, client.pid, 19)
        hogs = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(2)]
        for hog in hogs:
            os.sched_setaffinity(hog.pid, {cpu})
        try:
            time.sleep(3)
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
        assert client.wait(60) == 0
    validity = write_session_metrics(tmp_path / "out")["validity"]
    assert validity["verdict"] == "INVALID"
    assert "client_bound" in {rule["rule"] for rule in validity["rules"] if rule["verdict"] == "fail"}


def test_25_512_requests_are_really_in_flight(measure):
    run = measure(
        Script(ttft_s=1.0, caches=False),
        load={"kind": "closed", "concurrency": 512},
        source={"kind": "random", "input_len": 4, "output_len": 1},
        requests_per_pass=512,
        warmup_requests=0,
        processes=1,
    )
    assert run.server.seen.peak_in_flight == 512
    assert run.client["passes"][0]["peak_in_flight"] == 512


def test_25_too_few_open_files_are_noticed_before_the_start(tmp_path):
    spec = tmp_path / "w.json"
    spec.write_text(make_workload(load={"kind": "closed", "concurrency": 512}).model_dump_json())
    command = (
        f"ulimit -n 300; exec {sys.executable} -m workloads.client {spec} --url http://127.0.0.1:9 --out {tmp_path}/o"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "raise `ulimit -n` to 576" in done.stderr


def test_26_an_open_loop_measures_from_the_intended_start(measure, monkeypatch):
    body = wire.GenerateWire.read

    def slow(self, payload, answer):
        time.sleep(0.02)
        return body(self, payload, answer)

    monkeypatch.setattr(wire.GenerateWire, "read", slow)
    run = measure(load={"kind": "constant", "rate_per_s": 50.0}, requests_per_pass=30)
    assert "start_lag" in run.failed and "sent late" in run.reasons
    measured = run.requests[run.requests["phase"] == "measured"]
    from_sending = (measured["first_token_s"] - measured["start_s"]).mean()
    assert run.body["diagnostics"]["ttft_mean_s"] > from_sending
    gaps = np.diff(measured["intended_start_s"].to_numpy(dtype=float))
    assert gaps == pytest.approx([0.02] * 29), "the timetable does not slip"


def test_27_prompts_exist_before_t0(measure):
    run = measure(source={"kind": "random", "input_len": 20_000, "output_len": 2}, requests_per_pass=20)
    facts = run.client["passes"][0]
    assert facts["build_s"] > 0 and facts["start_gap_s"] < 0.02
    assert run.requests[run.requests["phase"] == "measured"]["start_s"].min() == 0.0


def test_28_the_body_is_recorded_as_the_server_received_it(measure):
    run = measure(sampling={"temperature": 0.5, "ignore_eos": True})
    for body in run.server.seen.bodies[1:]:
        assert body["sampling_params"] == {"temperature": 0.5, "top_p": 1.0, "ignore_eos": True, "max_new_tokens": 8}
        assert body["stream"] is True
    sample = run.body["client"]["sample_body"]
    assert sample["sampling_params"]["ignore_eos"] is True and sample["input_ids"]["length"] == 64
    assert run.body["client"]["location"]["num_cpus"] == os.cpu_count()


@pytest.mark.parametrize("name", [n for n in names() if n in ("prefill", "decode") or n.startswith("integrated")])
def test_29_every_workload_reaches_its_declared_concurrency(measure, name):
    for concurrency in (2, 5):
        workload = resolve(
            name,
            {
                "input_len": 256,
                "output_len": 4,
                "concurrency": concurrency,
                "passes": 1,
                "page_size": 16,
                "min_window_s": 0.0,
                "max_loop_lag_p99_ms": 200.0,
            },
        )
        run = measure(Script(cache_page=16, ttft_s=0.02), workload=workload)
        assert run.server.seen.peak_in_flight == concurrency
        assert run.failed <= {"concurrency"}, run.reasons


# D. Failures reported as results


def test_30_there_is_one_verdict_with_one_list_of_reasons(measure):
    good, bad = measure(), measure(Script(stop_after=2))
    assert good.body["validity"]["verdict"] == "VALID" and good.body["validity"]["reasons"] == []
    assert bad.body["validity"]["verdict"] == "INVALID"
    assert bad.body["validity"]["reasons"] == [
        "output_length: 20 of 20 answers have another length than requested, although ignore_eos was asked for"
    ]
    assert "metrics" in good.body and "diagnostics" not in good.body
    assert "metrics" not in bad.body and "diagnostics" in bad.body


def test_31_no_token_is_no_success(measure):
    run = measure(Script(no_tokens=True))
    assert "errors" in run.failed and "no_tokens" in run.reasons
    assert run.body["diagnostics"]["num_requests"] == 0
    assert metrics.main([str(run.folder), "--strict"]) == 5


def test_31_unknown_keys_are_errors():
    with pytest.raises(SpecError, match="concurency"):
        make_workload(load={"kind": "closed", "concurency": 4})
    with pytest.raises(SpecError, match="has no parameter input_length"):
        resolve("prefill", {"input_length": 5})


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (Script(break_after=3), "broken_stream"),
        (Script(end_early_after=3), "early_end"),
        (Script(error_event_after=3), "error_event"),
        (Script(fail_every=2), "http_status"),
        (Script(die_after=12), "connect"),
        (Script(stall_after=2, stall_request=9), "stall"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_32_each_way_of_dying_has_its_own_reason(measure, script, kind):
    run = measure(script, timeouts={"stall_s": 0.5, "deadline_s": 8.0})
    assert run.verdict == "INVALID" and "errors" in run.failed
    assert kind in set(run.requests["error_kind"].dropna())
    assert kind in run.reasons


def test_32_a_server_that_is_not_there_has_an_exit_code_of_its_own(tmp_path):
    spec = tmp_path / "w.json"
    spec.write_text(make_workload(timeouts={"ready_s": 0.5}).model_dump_json())
    command = [sys.executable, "-m", "workloads.client", spec, "--url", "http://127.0.0.1:9", "--out", tmp_path / "o"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and "was not ready within 0.5 s" in done.stderr
    assert read_json(tmp_path / "o" / "client.json")["status"] == "not_ready"
    body = write_session_metrics(tmp_path / "o")
    assert body["validity"]["verdict"] == "INVALID" and "not_ready" in body["validity"]["reasons"][0]


def test_33_refused_requests_stay_in_the_table_and_make_it_invalid(measure):
    run = measure(Script(fail_every=20), requests_per_pass=100)
    found = run.body["diagnostics"]
    assert run.failed == {"errors"} and "503" in run.reasons
    assert found["num_attempted"] == 100 and found["num_failed"] == 5 and found["num_requests"] == 95


def test_33_a_declared_error_budget_is_a_budget(measure):
    run = measure(Script(fail_every=20), requests_per_pass=100, limits={"max_error_ratio": 0.06})
    assert run.verdict == "VALID" and run.values["num_failed"] == 5


def test_34_files_of_a_run_agree_on_the_counts(measure):
    run = measure(passes=2)
    assert run.values["num_requests"] == len(run.requests.query("phase == 'measured' and ok")) == 40
    per_request = run.chunks.groupby(["pass_index", "request_index"])["num_tokens"].sum()
    assert per_request.tolist() == run.requests["output_tokens"].tolist()


def test_34_a_server_whose_count_is_not_what_it_sent_is_invalid(measure):
    run = measure(Script(output_miscount=1), sampling={"ignore_eos": True})
    assert run.verdict == "INVALID" and {"output_length", "token_counts"} & run.failed


def test_35_a_folder_that_holds_a_run_is_refused(measure):
    run = measure()
    with pytest.raises(SpecError, match="already holds a run"):
        run_workload(make_workload(), Target(url=run.server.url), run.folder, progress=False)


def test_36_nothing_is_measured_before_the_server_is_ready(measure):
    began = time.monotonic()
    run = measure(Script(ready_after_s=1.5))
    assert run.server.seen.started_s[0] - began >= 1.5
    assert run.client["ready_s"] > 0 and run.verdict == "VALID", run.reasons


def test_37_half_a_file_is_an_error_with_a_name(measure, capsys):
    run = measure()
    path = run.folder / "chunks.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    assert metrics.main([str(run.folder)]) == 2
    assert "chunks.parquet is not a whole Parquet file" in capsys.readouterr().err


# E. Noise and gates: what concerns the measurement itself


def _gpu_trace(tmp_path, *, reasons, clock=1980, start=None, foreign=()):
    path = tmp_path / "gpu.jsonl"
    start = time.time() if start is None else start
    lines = [
        {
            "t_unix_s": start + i * 0.02,
            "gpu": 0,
            "sm_clock_mhz": clock,
            "reasons": reasons(i),
            "foreign_pids": list(foreign),
        }
        for i in range(500)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _with_gpu(measure, tmp_path, *, limits=None, **trace):
    path = _gpu_trace(tmp_path, **trace)
    return measure(Script(chunk_gap_s=0.01), metrics={"gpu": path}, limits={"gpu": "required"} | (limits or {}))


def test_41_a_power_cap_that_holds_the_clock_down_is_a_flag(measure, tmp_path):
    run = _with_gpu(
        measure, tmp_path, reasons=lambda i: ["sw_power_cap"] if i % 2 else [], limits={"max_power_cap_share": 0.2}
    )
    assert run.failed == {"power_cap"}


def test_41_thermal_slowdown_and_other_processes_are_invalid(measure, tmp_path):
    run = _with_gpu(measure, tmp_path, reasons=lambda i: ["hw_thermal"], foreign=[4711])
    assert run.failed == {"throttle", "foreign_processes"}


def test_41_a_clock_off_the_baseline_is_invalid(measure, tmp_path):
    run = _with_gpu(measure, tmp_path, reasons=lambda i: [], clock=1700, limits={"sm_clock_mhz": [1940, 2020]})
    assert run.failed == {"sm_clock"}


def test_41_missing_samples_are_no_proof_of_a_cool_gpu(measure):
    assert measure(limits={"gpu": "required"}).failed >= {"throttle", "power_cap", "foreign_processes"}


def test_41_noise_between_passes_beyond_the_limit_is_invalid(measure):
    run = measure(
        Script(ttft_of=lambda n: 0.001 if n < 30 else 0.08, caches=False), passes=2, limits={"max_noise": 0.05}
    )
    assert run.failed == {"noise"}


# F. Hanging and stalling


def test_43_a_silent_request_is_a_stall_and_the_rest_goes_on(measure):
    run = measure(Script(stall_after=2, stall_request=7), timeouts={"stall_s": 0.6})
    assert run.requests["error_kind"].dropna().tolist() == ["stall"]
    assert run.requests["ok"].sum() >= 20 and "no event for 0.6 s" in run.reasons


def test_45_a_stalled_server_ends_the_run_at_the_deadline(measure):
    began = time.monotonic()
    run = measure(Script(stall_after=2, faults_from=15), timeouts={"stall_s": 60.0, "deadline_s": 1.5})
    assert time.monotonic() - began < 6
    assert run.client["status"] == "deadline" and {"complete", "errors"} <= run.failed
    assert run.requests["ok"].sum() > 5, "what had ended is kept"


@pytest.mark.parametrize("processes", [1, 2])
def test_45_an_interrupt_keeps_what_has_ended(tmp_path, processes):
    spec = tmp_path / "w.json"
    with serve(Script(chunk_gap_s=0.02)) as server:
        spec.write_text(make_workload(requests_per_pass=2000, passes=1).model_dump_json())
        command = [sys.executable, "-m", "workloads.client", spec, "--url", server.url, "--out", tmp_path / "o"]
        command += ["--processes", str(processes)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as client:
            while server.seen.num_requests < 30 and client.poll() is None:
                time.sleep(0.05)
            client.send_signal(signal.SIGINT)
            _, error = client.communicate(timeout=20)
    assert client.returncode == 130 and "keeping what has ended" in error
    requests = read_requests(tmp_path / "o")
    assert requests["ok"].sum() >= 20 and set(requests["error_kind"].dropna()) == {"interrupted"}
    body = write_session_metrics(tmp_path / "o")
    assert body["validity"]["verdict"] == "INVALID" and "interrupted" in body["validity"]["reasons"][0]


def test_45_an_interrupt_is_heard_before_the_server_is_ready(tmp_path):
    spec = tmp_path / "w.json"
    spec.write_text(make_workload().model_dump_json())
    with serve(Script(ready_after_s=60.0)) as server:
        command = [sys.executable, "-m", "workloads.client", spec, "--url", server.url, "--out", tmp_path / "o"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as client:
            while server.seen.num_health < 1 and client.poll() is None:
                time.sleep(0.05)
            client.send_signal(signal.SIGINT)
            client.communicate(timeout=20)
    assert client.returncode == 130
    assert read_json(tmp_path / "o" / "client.json")["status"] == "interrupted"


@pytest.mark.parametrize("url", ["localhost:30000", "ftp://127.0.0.1:1", "http://", "http://127.0.0.1:99999", ""])
def test_what_is_no_url_is_refused_at_once(tmp_path, url):
    with pytest.raises(SpecError, match="is no URL of a server; write it like http://"):
        run_workload(make_workload(), Target(url=url), tmp_path / "o", progress=False)


# G. Speculation and service levels (accuracy: test_accuracy.py)


def test_49_acceptance_outside_its_band_is_invalid(measure):
    low = measure(Script(accept_length=1.02), limits={"accept_length": [4.5, 5.5]})
    good = measure(Script(accept_length=5.0), source={"kind": "random", "input_len": 8, "output_len": 50},
                   limits={"accept_length": [4.5, 5.5]})  # fmt: skip
    none = measure(Script(), limits={"accept_length": [4.5, 5.5]})
    assert low.failed == {"accept_length"} and none.failed == {"accept_length"}
    assert good.verdict == "VALID" and good.values["accept_length"] == pytest.approx(5.0)


def test_49_acceptance_on_random_tokens_carries_a_warning(measure):
    run = measure(Script(accept_length=2.0))
    assert "random tokens" in run.body["validity"]["warnings"][0]


def test_50_service_levels_are_typed():
    level = {"metric": "ttft", "statistic": "mean", "bound": 6, "unit": "s"}
    assert str(make_workload(slo=[level]).slo[0]) == "ttft mean < 6 s"
    for wrong in ({"metric": "latency"}, {"unit": "ms"}, {"statistic": "p42"}, {"bound": -1}, {"limit": 3}):
        with pytest.raises(SpecError):
            make_workload(slo=[level | wrong])


def test_50_goodput_counts_requests_that_meet_every_level(measure):
    slo = [{"metric": "ttft", "statistic": "each", "bound": 0.1, "unit": "s"}]
    run = measure(
        Script(ttft_of=lambda n: 0.3 if n % 4 == 0 else 0.002), slo=slo, load={"kind": "closed", "concurrency": 1},
        warmup_requests=3,
    )  # fmt: skip
    assert run.values["slo_attainment_ratio"] == pytest.approx(15 / 20)
    assert math.isclose(run.values["goodput_requests_s"], 15 / run.values["duration_s"])


def test_a_plan_round_trips_through_json():
    workload = make_workload()
    assert parse(workload.model_dump_json()) == workload
