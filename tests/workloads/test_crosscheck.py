"""The other tools get the same workload, and SGLang's own client sees the same numbers on the same server."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fault_server import Script, serve
from measuring import make_workload
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from workloads.client import Target
from workloads.crosscheck import PEERS, NotInstalledError, crosscheck
from workloads.crosscheck.__main__ import main
from workloads.crosscheck.compare import peer_shaped
from workloads.crosscheck.peers import Ask
from workloads.spec import SpecError

LAUNCHER = Path(__file__).parents[1] / "support" / "bench_client.py"


@pytest.fixture
def tokenizer(tmp_path):
    """A small tokenizer folder as transformers loads it."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([f"word{i} is number {i}" for i in range(2000)], trainer)
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1 << 20}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    return str(folder)


def test_commands_carry_the_workload(tmp_path):
    ask = Ask(url="http://127.0.0.1:1", tokenizer="T", out=tmp_path / "r.jsonl", launcher=Path("tool"))
    workload = make_workload()
    for name in PEERS:
        command = PEERS[name].command(workload, ask)
        text = " ".join(command)
        assert all(word in command for word in ("64", "8", "20", "4")), name
        assert "ignore" in text or name == "sglang", "sglang ignores the end of sequence by default"
    shared = make_workload(
        source={"kind": "shared_prefix", "input_len": 100, "output_len": 8, "shared_ratio": 0.6, "groups": 2}
    )
    command = PEERS["sglang"].command(shared, ask)
    assert command[command.index("--gsp-system-prompt-len") + 1] == "60"
    assert command[command.index("--gsp-question-len") + 1] == "40"
    with pytest.raises(SpecError, match="source random"):
        PEERS["vllm"].command(shared, ask)


def test_what_is_not_installed_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    ask = Ask(url="http://127.0.0.1:1", tokenizer="T", out=tmp_path / "r.jsonl")
    for name in ("vllm", "aiperf"):
        with pytest.raises(NotInstalledError, match=f"{name} is not installed"):
            PEERS[name].command(make_workload(), ask)


def test_result_files_of_the_peers_are_read(tmp_path):
    (tmp_path / "v.json").write_text(
        json.dumps(
            {"completed": 3, "output_throughput": 50.0, "mean_ttft_ms": 250.0, "mean_tpot_ms": 9.0, "duration": 2.0}
        )
    )
    numbers = PEERS["vllm"].read(tmp_path / "v.json")
    assert (numbers.output_tok_s, numbers.ttft_mean_s, numbers.tpot_mean_ms) == (50.0, 0.25, 9.0)
    blocks = {"time_to_first_token": (250.0, "ms"), "inter_token_latency": (9.0, "ms")}
    blocks |= {"output_token_throughput": (50.0, "tokens/sec"), "request_count": (3, "requests")}
    body = {name: {"avg": value, "unit": unit} for name, (value, unit) in blocks.items()}
    (tmp_path / "profile_export_aiperf.json").write_text(json.dumps(body))
    assert PEERS["aiperf"].read(tmp_path / "r.jsonl").ttft_mean_s == 0.25


def test_a_comparison_has_the_shape_of_the_peers():
    shaped = peer_shaped(make_workload(passes=3))
    assert shaped.passes == 1 and not shaped.load.handover and not shaped.load.keep_full
    with pytest.raises(SpecError, match="load closed"):
        peer_shaped(make_workload(load={"kind": "poisson", "rate_per_s": 1.0}))


def test_what_cannot_be_compared_is_said_before_anything_runs(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    where = {"target": Target(url="http://127.0.0.1:9"), "out": tmp_path / "o"}
    with pytest.raises(NotInstalledError, match="vllm is not installed"):
        crosscheck(make_workload(), peer="vllm", tokenizer=tokenizer, **where)
    with pytest.raises(SpecError, match="there is no tokenizer folder"):
        crosscheck(make_workload(), peer="sglang", tokenizer=str(tmp_path / "absent"), **where)
    assert not (tmp_path / "o").exists()


def test_a_peer_that_fails_is_an_error(tmp_path, tokenizer, capsys):
    spec, bad = tmp_path / "w.json", tmp_path / "bad.py"
    spec.write_text(make_workload().model_dump_json())
    bad.write_text("raise SystemExit('the tool broke')")
    with serve(Script()) as server:
        arguments = [str(spec), "--url", server.url, "--peer", "sglang", "--tokenizer", tokenizer]
        arguments += ["--out", str(tmp_path / "o"), "--launcher", str(bad), "--order", "b"]
        assert main(arguments) == 2
    assert "sglang failed with 1: the tool broke" in capsys.readouterr().err


@pytest.mark.slow
def test_both_agree_on_this_projects_own_server(tmp_path):
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("the sglang wheel is not installed")
    from tests.support.serving import serving

    workload = make_workload(
        source={"kind": "random", "input_len": 512, "output_len": 64, "vocab_low": 300, "vocab_high": 400},
        load={"kind": "closed", "concurrency": 4},
        requests_per_pass=24,
        warmup_requests=4,
    )
    script = {"delay_s": 1.0, "step_s": 0.03}
    with serving(tmp_path / "model", script) as server:
        result = crosscheck(
            workload, peer="sglang", target=Target(url=server.url), tokenizer=str(server.folder), out=tmp_path / "o",
            launcher=LAUNCHER,
        )  # fmt: skip
    (tmp_path / "result.json").write_text(json.dumps(result))
    for key, value in result["values"].items():
        assert abs(value["ours_over_theirs_minus_1"]) < 0.01, (key, value)


@pytest.mark.slow
def test_sglangs_client_and_ours_agree_within_one_percent(tmp_path, tokenizer):
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("the sglang wheel is not installed")
    command = [sys.executable, "-m", "workloads.null_server", "--gap-ms", "20", "--text-bytes", "4"]
    workload = make_workload(
        source={"kind": "random", "input_len": 512, "output_len": 96, "vocab_low": 300, "vocab_high": 1900},
        load={"kind": "closed", "concurrency": 8},
        requests_per_pass=40,
        warmup_requests=8,
    )
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            result = crosscheck(
                workload, peer="sglang", target=Target(url=server.stdout.readline().strip()), tokenizer=tokenizer,
                out=tmp_path / "o", launcher=LAUNCHER,
            )  # fmt: skip
        finally:
            server.stdin.close()
    values = result["values"]
    assert result["num_requests"] == {"ours": [40, 40], "theirs": [40, 40]}
    # SGLang's client adds 10 to 15 ms to a request of 1.9 s, ours less: that explains so much of the difference.
    ttft = values["ttft_mean_s"]
    explained = (sum(ttft["theirs"]) - sum(ttft["ours"])) / 2 / (95 * 0.02)
    assert abs(values["output_tok_s"]["ours_over_theirs_minus_1"] - explained) < 0.01, values
    assert abs(values["tpot_mean_ms"]["ours_over_theirs_minus_1"]) < 0.01, values
    # The server's TTFT is nothing, so what is compared is what each client adds: under 5 ms on both sides.
    assert max(values["ttft_mean_s"]["ours"] + values["ttft_mean_s"]["theirs"]) < 0.05, values
