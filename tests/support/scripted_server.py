"""A small real HTTP server that misbehaves as told: `scripted_server.py SCRIPT.json --port N`.

Knows nothing of models. The script may hold `ready_after_s`, `die_after_s`, `exit_code`, `healthy_workers`,
`children` (processes of the same session that ignore SIGTERM), `detached` (grandchildren in a session of their own)
and `say` (a last line before dying). What it starts names the script, so that a test knows its own.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
SLEEPER = "import time; time.sleep(600)"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("script", type=Path)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    script = json.loads(options.script.read_text())
    for _ in range(script.get("children", 0)):
        subprocess.Popen([sys.executable, "-c", STUBBORN, str(options.script)])
    for _ in range(script.get("detached", 0)):
        subprocess.Popen([sys.executable, "-c", SLEEPER, str(options.script)], start_new_session=True)
    if "die_after_s" in script:
        threading.Thread(target=die, args=(script,), daemon=True).start()
    serve(script, options.port)


def die(script: dict[str, Any]) -> None:
    time.sleep(script["die_after_s"])
    print(script.get("say", "the script says: die"), file=sys.stderr, flush=True)
    os._exit(script.get("exit_code", 1))


def serve(script: dict[str, Any], port: int) -> None:
    started = time.monotonic()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_ready = time.monotonic() - started >= script.get("ready_after_s", 0.0)
            body = json.dumps({"healthy_workers": script.get("healthy_workers", 0)}).encode()
            self.send_response(200 if is_ready else 503)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
