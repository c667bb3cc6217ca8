"""One half of a hand-off in a process of its own, driven by lines of JSON: `half_process.py prefill|decode SETTINGS`.

SETTINGS is JSON: dotted configuration paths, plus `http_port` (prefill: where to serve the endpoint) and `pages`,
`page_bytes`, `slots`, `slot_bytes`, `fill` (a number that the prefill's bytes are made of; decode is filled with 0xEE).
Commands are the methods' names with their arguments; `read` gives a digest of an item, `info` the process's own view.
"""

import dataclasses
import hashlib
import json
import os
import select
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import numpy as np

from stack.config import EngineConfig, with_settings
from stack.core.clock import MonotonicClock
from stack.core.errors import RequestError
from stack.core.messages import Bootstrap
from stack.disagg import DecodeHandoff, PrefillHandoff
from stack.transfer import Pools, Spans


def item_bytes(fill: int, pool: str, index: int, size: int) -> bytes:
    """What prefill keeps in one item."""
    seed = hashlib.sha256(f"{fill} {pool} {index}".encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


class Half:
    def __init__(self, role: str, settings: dict) -> None:
        own = {name: settings.pop(name, default) for name, default in _OWN.items()}
        config = with_settings(EngineConfig(role=role), settings)
        sizes = {"pages": (own["pages"], own["page_bytes"]), "slots": (own["slots"], own["slot_bytes"])}
        self.arrays = {name: np.full(size, 0xEE, np.uint8) for name, size in sizes.items()}
        if role == "prefill":
            for name, array in self.arrays.items():
                for index in range(len(array)):
                    array[index] = np.frombuffer(item_bytes(own["fill"], name, index, array.shape[1]), np.uint8)
        spans = {n: Spans(base=a.ctypes.data, item_bytes=a.shape[1], count=len(a)) for n, a in self.arrays.items()}
        layout = {"page_size": str(config.cache.page_size), "model": own["model"]}
        kind = PrefillHandoff if role == "prefill" else DecodeHandoff
        self.handoff = kind(config, layout, Pools(**spans), MonotonicClock())
        if role == "prefill":
            self.http = _serve(own["http_port"], own["address"] or self.handoff.address, self.handoff)

    def do(self, command: dict):
        name = command.pop("do")
        if name == "read":
            item = self.arrays[command["pool"]][command["id"]]
            return hashlib.sha256(item.tobytes()).hexdigest()
        if name == "info":
            return self._info()
        if name == "poll":
            return [{"event": type(e).__name__} | msgspec.to_builtins(dataclasses.asdict(e)) for e in self._poll()]
        if "bootstrap" in command:
            command["bootstrap"] = Bootstrap(**command["bootstrap"])
        if "extras" in command:
            command["extras"] = bytes.fromhex(command["extras"])
        try:
            return getattr(self.handoff, name)(**command)
        except RequestError as error:
            return {"refused": str(error)}

    def _poll(self):
        events = self.handoff.poll()
        return [dataclasses.replace(e, extras=e.extras.hex()) if hasattr(e, "extras") else e for e in events]

    def _info(self) -> dict:
        pages = os.sysconf("SC_PAGE_SIZE")
        with Path("/proc/self/statm").open() as statm:
            resident = int(statm.read().split()[1]) * pages
        worker = self.handoff._worker
        return {
            "instance": self.handoff.instance,
            "address": getattr(self.handoff, "address", ""),
            "counters": self.handoff.counters(),
            "resident": resident,
            "threads": threading.active_count(),
            "fds": len(list(Path("/proc/self/fd").iterdir())),
            "writes": len(worker._running) + len(worker._waiting),
            "nixl_peers": worker._agent.num_peers,
        }


_OWN = {
    "http_port": 0,
    "address": "",
    "model": "m",
    "fill": 1,
    "pages": 64,
    "page_bytes": 4096,
    "slots": 8,
    "slot_bytes": 10000,
}


def _serve(port: int, address: str, handoff: PrefillHandoff) -> HTTPServer:
    body = json.dumps({"address": address, "layout_hash": handoff.layout_hash, "instance": handoff.instance}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/disagg/endpoint" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            del arguments

    HTTPServer.allow_reuse_address = True
    server = HTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # UCX writes its warnings to standard output
    half = Half(sys.argv[1], json.loads(sys.argv[2]))
    print("ready", half.http.server_address[1] if sys.argv[1] == "prefill" else 0, file=answers, flush=True)
    while select.select([sys.stdin], [], [])[0] and (line := sys.stdin.readline()):
        print(json.dumps(half.do(json.loads(line))), file=answers, flush=True)
    half.handoff.close()


if __name__ == "__main__":
    main()
