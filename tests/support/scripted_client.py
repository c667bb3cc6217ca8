"""A load client that leaves the files of one: `scripted_client.py WORKLOAD.json --url URL --out FOLDER`.

The workload may hold `seconds` (how long it works, waiting for SIGTERM), `exit_code` and, with `--baton`, `passes` and
`dies_in_pass`. In the checkout, `speed.txt` stands for how fast its engine is, and `misbehaves.json` adds to what the
workload holds.
"""

import argparse
import json
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", type=Path)
    parser.add_argument("--url", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--baton")
    parser.add_argument("--no-progress", action="store_true")
    options = parser.parse_args()
    own = Path("misbehaves.json")
    script = json.loads(options.workload.read_text()) | (json.loads(own.read_text()) if own.exists() else {})
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    urllib.request.urlopen(f"{options.url}/health", timeout=5).read()
    print("working", flush=True)
    if options.baton and (sentence := take_turns(options.baton, script)):
        print(f"error: {sentence}", flush=True)
        return 5
    until = time.monotonic() + script.get("seconds", 0.0)
    while time.monotonic() < until and not stopped:
        time.sleep(0.02)
    (options.out / "requests.parquet").write_text("stopped" if stopped else "whole")
    speed = Path("speed.txt")
    (options.out / "client.json").write_text(json.dumps({"speed": float(speed.read_text()) if speed.exists() else 1.0}))
    print(script.get("say", "done"), flush=True)
    return 130 if stopped else script.get("exit_code", 0)


def take_turns(baton: str, script: dict[str, Any]) -> str:
    """Turns in which nothing is measured; returns what the referee says in place of the end."""
    with socket.socket(socket.AF_UNIX) as referee:
        referee.connect(baton)
        words = referee.makefile("rw", buffering=1)
        words.write("ready\n")
        for index in range(script["passes"]):
            if (line := words.readline().strip()) != "go":
                return line.removeprefix("stop ")
            if script.get("dies_in_pass") == index:
                sys.exit(1)
            words.write("done\n")
        line = words.readline().strip()
        return "" if line == "end" else line.removeprefix("stop ")


if __name__ == "__main__":
    sys.exit(main())
