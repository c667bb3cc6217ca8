"""A load client that leaves the files of one: `scripted_client.py WORKLOAD.json --url URL --out FOLDER`.

The workload may hold `seconds` (how long it works, waiting for SIGTERM) and `exit_code`. A file `speed.txt` in the
checkout stands for how fast its engine is.
"""

import argparse
import json
import signal
import sys
import time
import urllib.request
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", type=Path)
    parser.add_argument("--url", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    script = json.loads(options.workload.read_text())
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    urllib.request.urlopen(f"{options.url}/health", timeout=5).read()
    print("working", flush=True)
    until = time.monotonic() + script.get("seconds", 0.0)
    while time.monotonic() < until and not stopped:
        time.sleep(0.02)
    (options.out / "requests.parquet").write_text("stopped" if stopped else "whole")
    speed = Path("speed.txt")
    (options.out / "client.json").write_text(json.dumps({"speed": float(speed.read_text()) if speed.exists() else 1.0}))
    print(script.get("say", "done"), flush=True)
    return 130 if stopped else script.get("exit_code", 0)


if __name__ == "__main__":
    sys.exit(main())
