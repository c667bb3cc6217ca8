"""What this client can carry on this machine, against a server that thinks nothing.

    python tools/client_capacity.py [--streams 140] [--input-len 65536] [--output-len 1024] [--rate 25000] [--tries 3]

Two figures. *Ceiling*: events per second with the server writing as fast as it can. *Paced*: the asked token rate
over all streams, and how late the client's event loop was meanwhile. Prints one JSON line for every try.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from workloads.client import Target, run_workload
from workloads.metrics import write_session_metrics
from workloads.records import read_chunks
from workloads.spec import parse


def measure(options, *, gap_ms, in_step, label, requests, input_len, output_len):
    """One run; returns the figures."""
    command = [sys.executable, "-m", "workloads.null_server", "--gap-ms", str(gap_ms), "--text-bytes", "4"]
    command += ["--in-step"] if in_step else []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        url = server.stdout.readline().strip()
        workload = parse(
            {
                "name": "capacity",
                "source": {"kind": "random", "input_len": input_len, "output_len": output_len},
                "load": {"kind": "closed", "concurrency": options.streams},
                "passes": 1,
                "requests_per_pass": requests,
                "cache": {"intent": "cold"},
                "limits": {"min_window_s": 0.0},
                "timeouts": {"ready_s": 10.0},
            }
        )
        with tempfile.TemporaryDirectory() as folder:
            client = run_workload(
                workload, Target(url=url), Path(folder) / "run", progress=False, processes=options.processes
            )
            body = write_session_metrics(Path(folder) / "run")
            events = len(read_chunks(Path(folder) / "run"))
        server.stdin.close()
        server.wait(timeout=10)
    values = body.get("metrics") or body["diagnostics"]
    facts = client["passes"][0]
    return {
        "what": label,
        "verdict": body["validity"]["verdict"],
        "reasons": body["validity"]["reasons"],
        "streams": options.streams,
        "processes": options.processes,
        "input_len": input_len,
        "output_len": output_len,
        "events_s": round(values["output_tok_s"]),
        "window_s": round(values["duration_s"], 2),
        "events": events,
        "client_cpu_s": round(facts["client_cpu_s"], 2),
        "events_per_cpu_s": round(events / facts["client_cpu_s"]),
        "loop_lag_p50_ms": round(facts["loop_lag_p50_ms"], 2),
        "loop_lag_p99_ms": round(facts["loop_lag_p99_ms"], 2),
        "loop_lag_max_ms": round(facts["loop_lag_max_ms"], 2),
        "load_average": round(os.getloadavg()[0], 2),
    }


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=140)
    parser.add_argument("--input-len", type=int, default=65536)
    parser.add_argument("--output-len", type=int, default=1024)
    parser.add_argument("--rate", type=float, default=25000.0, help="tokens per second over all streams")
    parser.add_argument("--requests", type=int, help="measured requests (default: two for each stream)")
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="processes of the client")
    parser.add_argument("--no-ceiling", dest="ceiling", action="store_false", help="measure only the paced load")
    options = parser.parse_args()
    requests = options.requests or 2 * options.streams
    gap_ms = 1000 * options.streams / options.rate
    for _ in range(options.tries if options.ceiling else 0):
        ceiling = {"requests": requests, "input_len": 64, "output_len": options.output_len}
        print(json.dumps(measure(options, gap_ms=0, in_step=False, label="ceiling", **ceiling)), flush=True)
    for _ in range(options.tries):
        shape = {"requests": requests, "input_len": options.input_len, "output_len": options.output_len}
        for in_step in (False, True):
            label = "paced, in step" if in_step else "paced, each its own time"
            print(json.dumps(measure(options, gap_ms=gap_ms, in_step=in_step, label=label, **shape)), flush=True)


if __name__ == "__main__":
    main()
