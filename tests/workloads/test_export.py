"""Exports carry our values under the other tools' names and units, and nothing of an invalid run."""

import json

import pytest
from fault_server import Script

from workloads.export import main
from workloads.files import read_json


def test_a_request_is_one_aiperf_line(measure, tmp_path):
    run = measure(Script(fail_every=10))
    assert main([str(run.folder), "--aiperf", str(tmp_path / "a.jsonl")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(lines) == len(run.requests)
    row, line = next((r, ln) for r, ln in zip(run.requests.itertuples(), lines, strict=True) if r.ok)
    ttft = line["metrics"]["time_to_first_token"]
    assert ttft == {"value": pytest.approx(1000 * (row.first_token_s - row.start_s)), "unit": "ms"}
    assert line["metrics"]["output_sequence_length"] == {"value": 8, "unit": "tokens"}
    assert line["metadata"]["x_request_id"] == row.rid and line["error"] is None
    failed = next(ln for ln in lines if ln["error"])
    assert failed["error"] == {"type": "http_status", "message": failed["error"]["message"], "code": 503}


def test_a_valid_run_is_a_benchmark_report(measure, tmp_path):
    run = measure()
    assert main([str(run.folder), "--llmd", str(tmp_path / "r.json")]) == 0
    report = read_json(tmp_path / "r.json")
    assert report["version"] == "0.2" and set(report) == {"version", "run", "scenario", "results"}
    found = report["results"]["request_performance"]["aggregate"]
    assert found["throughput"]["output_token_rate"] == {"units": "tokens/s", "mean": run.values["output_tok_s"]}
    assert found["latency"]["time_per_output_token"]["units"] == "ms/token"
    assert found["latency"]["time_to_first_token"]["mean"] == run.values["ttft_mean_s"]
    assert "p99" not in found["latency"]["time_to_first_token"], "too few requests for it"
    assert found["requests"]["total"] == 20 and found["requests"]["input_length"]["mean"] == 64
    load = report["scenario"]["load"]["standardized"]
    assert load["concurrency"] == 4 and load["input_seq_len"] == {"distribution": "fixed", "value": 64}


def test_an_invalid_run_gives_no_report(measure, tmp_path, capsys):
    run = measure(Script(stop_after=2))
    assert main([str(run.folder), "--llmd", str(tmp_path / "r.json")]) == 2
    assert "an INVALID run has no report: output_length" in capsys.readouterr().err
    assert not (tmp_path / "r.json").exists()
