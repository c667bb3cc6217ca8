"""This client and SGLang's own, each held against the engine's step log: a busy machine cannot blur that comparison.

    python tools/crosscheck_engine.py CONFIG.json --out FOLDER [--launcher tests/support/bench_client.py]

Starts one instance (role single), drives it in the order ours, theirs, theirs, ours, and prints for each run what the
client says beside what the steps say: output tokens a second, mean TTFT, mean TPOT. Two runs differ as the machine
does; a client and the engine see the same run. From the steps a request is known by its first token (the end of its
prefill step) and its last; it is sent when its slot's request before it ended, so a TTFT holds the client's turn too.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from workloads.client import Target
from workloads.crosscheck import crosscheck
from workloads.spec import parse

INPUT, OUTPUT, SLOTS, REQUESTS = 64, 32, 4, 16
IDLE_S = 0.06


def main():
    """Run the comparison; prints one line a run and value."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "config", type=Path, help="engine configuration, JSON, with a prefill chunk of 64 tokens or more"
    )
    parser.add_argument("--tokenizer", default=".cache/checkpoints/tiny", help="folder of the model's tokenizer")
    parser.add_argument("--launcher", type=Path, default=Path("tests/support/bench_client.py"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    log = options.out / "engine.jsonl"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "stack.server", str(options.config), "--set", f"server.port={port}"]
    command += ["--set", f"server.engine_log={log.resolve()}"]
    with subprocess.Popen(command) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_ready(url)
            result = crosscheck(
                workload(), peer="sglang", target=Target(url=url), tokenizer=str(Path(options.tokenizer).resolve()),
                out=options.out / "runs", launcher=options.launcher.resolve(),
            )  # fmt: skip
        finally:
            server.terminate()
    show(result, [engine_values(group) for group in measured_groups(log)])


def workload():
    """What both clients are asked for."""
    lengths = {"input_len": INPUT, "output_len": OUTPUT, "vocab_low": 16, "vocab_high": 1000}
    return parse(
        {
            "name": "crosscheck",
            "source": {"kind": "random", **lengths},
            "load": {"kind": "closed", "concurrency": SLOTS},
            "passes": 1,
            "requests_per_pass": REQUESTS,
            "warmup_requests": SLOTS,
            "cache": {"intent": "cold"},
            "limits": {"min_window_s": 0.0, "max_loop_lag_p99_ms": 200.0},
        }
    )


def wait_ready(url):
    """Until /health answers 200; ten minutes at most."""
    until = time.monotonic() + 600
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server is not ready after ten minutes")


def measured_groups(log):
    """The requests of each measured run, from the step log: between two pauses, as many as were measured."""
    groups, alive, current, end = [], [], [], None
    for step in map(json.loads, log.read_text().splitlines()):
        if step["kind"] not in ("prefill", "decode"):
            continue
        begin = step["t_s"] - step["device_s"]
        if end is not None and begin - end > IDLE_S and all(request["tokens"] < OUTPUT for request in alive):
            groups, alive, current = [*groups, current], [], []
        end = step["t_s"]
        if step["kind"] == "prefill":
            new = [{"begin": begin, "first": end, "last": end, "tokens": 1} for _ in range(step["rows"])]
            alive, current = alive + new, current + new
        else:
            for request in alive[: step["rows"]]:
                request["tokens"] += 1
                request["last"] = end
            alive = [request for request in alive if request["tokens"] < OUTPUT]
    return [group for group in [*groups, current] if len(group) == REQUESTS]


def engine_values(group):
    """Throughput, mean TTFT and mean TPOT of a run, as its steps say."""
    begin = min(request["begin"] for request in group)
    ends = sorted(request["last"] for request in group)
    sent = [begin] * SLOTS + ends[: len(group) - SLOTS]
    firsts = sorted(request["first"] for request in group)
    return {
        "output_tok_s": OUTPUT * len(group) / (ends[-1] - begin),
        "ttft_mean_s": statistics.mean(first - start for first, start in zip(firsts, sent, strict=True)),
        "tpot_mean_ms": 1e3 * statistics.mean((r["last"] - r["first"]) / (OUTPUT - 1) for r in group),
    }


def show(result, engine):
    """One line a run and value: the client's, the engine's, and how far apart they are."""
    runs = {"a": iter(range(2)), "b": iter(range(2))}
    for who, steps in zip(result["order"], engine, strict=True):
        run = next(runs[who])
        for key, by_engine in steps.items():
            by_client = result["values"][key]["ours" if who == "a" else "theirs"][run]
            name = "ours" if who == "a" else result["peer"]
            print(f"{name:7} {key:13} client {by_client:9.4f} engine {by_engine:9.4f} {by_client / by_engine - 1:+.2%}")


if __name__ == "__main__":
    main()
