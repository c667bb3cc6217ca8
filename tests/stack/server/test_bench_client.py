"""SGLang's own benchmark client, unmodified, against an instance."""

import json
import subprocess
import sys

import pytest

from tests.support.serving import ROOT, serving

GSP = (
    "--dataset-name generated-shared-prefix --gsp-num-groups 4 --gsp-prompts-per-group 4 --gsp-system-prompt-len 96 "
    "--gsp-question-len 32 --gsp-output-len 20"
).split()
RANDOM = (
    "--dataset-name random-ids --random-input-len 64 --random-output-len 20 --random-range-ratio 1.0 --num-prompts 16"
).split()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    script = {"cached": 64, "width": 3}
    with serving(tmp_path_factory.mktemp("model"), script, {"speculation.method": "mtp"}) as running:
        yield running


def bench(server, folder, *arguments):
    """The client's printed report and its result line."""
    output = folder / "bench.jsonl"
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "tests/support/bench_client.py", "--base-url", server.url),
            *("--model", server.folder, "--max-concurrency", "8", "--output-file", output),
            *("--flush-cache", "--cache-report", "--output-details", *arguments),
        ],
        env={"HOME": str(folder), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(output.read_text())


def assert_complete(result):
    assert result["completed"] == 16
    assert result["output_lens"] == [20] * 16
    assert not any(result["errors"])
    assert min(result["ttfts"]) > 0
    assert all(details["device"] <= 64 for details in result["cached_tokens_details"])


def test_the_shared_prefix_run_reports_exact_counts(server, tmp_path):
    printed, result = bench(server, tmp_path, "--backend", "sglang", "--tokenize-prompt", *GSP)
    assert_complete(result)
    assert result["input_lens"] == [128] * 16
    assert result["cached_tokens"] == [64] * 16
    assert result["cache_report"]["cache_hit_rate_pct"] == 50.0
    assert result["accept_length"] == pytest.approx(20 / 7)
    assert "Accept length" in printed
    heard = server.heard()
    warm_up = next(place for place, m in enumerate(heard) if m["type"] == "flush")
    assert [m["type"] for m in heard[:warm_up]].count("generate") == 1
    assert [m["type"] for m in heard[warm_up:]].count("generate") == 16


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sglang", "sglang-oai", "sglang-oai-chat"])
def test_every_backend_reports_exact_counts(server, tmp_path, backend):
    _, result = bench(server, tmp_path, "--backend", backend, *RANDOM)
    assert_complete(result)


@pytest.mark.slow
def test_a_run_without_streaming_works_too(server, tmp_path):
    _, result = bench(server, tmp_path, "--backend", "sglang", "--disable-stream", *RANDOM)
    assert result["output_lens"] == [20] * 16
