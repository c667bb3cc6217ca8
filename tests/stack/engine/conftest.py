import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import zmq

from stack.config import EngineConfig, with_settings
from stack.core import SamplingParams, messages
from stack.core.tokens import pack_tokens
from stack.engine.worker import Worker
from stack.models.tiny import TEXT_CONFIG
from tests.support.ledger_model import LedgerModel

GREEDY = SamplingParams(max_new_tokens=8, temperature=0.0, ignore_eos=True)


class Http:
    """The HTTP process's end of a worker: a ROUTER socket, and the endpoint that decode instances ask for."""

    def __init__(self, config: EngineConfig) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.worker = Worker(config, f"tcp://127.0.0.1:{port}")
        self.code: list[object] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.peer = b""
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, messages.Tokens] = {}
        self.other: list[object] = []

    def start(self) -> "Http":
        self.thread.start()
        self.ready = self.hear(messages.Ready)
        self.server = _serve(
            {
                "address": self.ready.disagg_address,
                "layout_hash": self.ready.layout_hash,
                "instance": self.ready.instance,
            }
        )
        return self

    @property
    def http_port(self) -> int:
        return self.server.server_address[1]

    def say(self, message) -> None:
        self.socket.send_multipart([self.peer, messages.encode(message)])

    def ask(self, rid, prompt, sampling=GREEDY, bootstrap=None) -> None:
        self.say(messages.Generate(rid=rid, prompt=pack_tokens(prompt), sampling=sampling, bootstrap=bootstrap))

    def receive(self, timeout_s: float = 10.0):
        until_s = time.monotonic() + timeout_s
        peer = messages.HEARTBEAT_PEER
        while peer == messages.HEARTBEAT_PEER:
            if not self.socket.poll(max(0, int(1000 * (until_s - time.monotonic())))):
                raise AssertionError(f"the worker said nothing within {timeout_s} s")
            peer, body = self.socket.recv_multipart()
        self.peer = peer
        message = messages.decode_from_worker(body)
        if isinstance(message, messages.Tokens):
            self.tokens.setdefault(message.rid, []).extend(message.token_ids)
            if message.finish:
                assert message.rid not in self.last
                self.last[message.rid] = message
        return message

    def hear(self, kind, timeout_s: float = 10.0):
        while not isinstance(message := self.receive(timeout_s), kind):
            pass
        return message

    def finish(self, *rids: str) -> None:
        while not set(rids) <= set(self.last):
            self.receive()

    def stats(self) -> dict[str, float]:
        self.say(messages.GetStats(call=99))
        return self.hear(messages.Stats).values

    def drain(self) -> int:
        self.say(messages.Drain(call=1))
        self.hear(messages.Drained)
        self.thread.join(10)
        return self.code[0]

    def close(self) -> None:
        if self.thread.is_alive() and self.peer:
            self.say(messages.Abort(rid=""))
            self.say(messages.Drain(call=2))
            self.thread.join(10)
        self.socket.close()
        self.context.term()
        if hasattr(self, "server"):
            self.server.shutdown()
            self.server.server_close()

    def _run(self) -> None:
        try:
            self.code.append(self.worker.run())
        except BaseException as error:
            self.code.append(error)


def _serve(answer: dict[str, str]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(answer).encode()
            self.send_response(200 if self.path == "/disagg/endpoint" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


@pytest.fixture
def worker(monkeypatch, tmp_path):
    """Start workers with the ledger model; ended after the test."""
    model_folder = tmp_path / "model"
    model_folder.mkdir()
    (model_folder / "config.json").write_text(json.dumps(TEXT_CONFIG))
    monkeypatch.setattr(
        "stack.engine.build.load_model",
        lambda config, device: LedgerModel(TEXT_CONFIG["vocab_size"], config.cache.page_size),
    )
    started: list[Http] = []

    def start(**settings) -> Http:
        plain = {
            "model.path": str(model_folder),
            "model.compute_dtype": "float32",
            "cache.kv_dtype": "float32",
            "cache.page_size": 16,
            "cache.budget_bytes": 48 << 20,
            "cache.expected_context": 128,
            "cache.expected_output": 32,
            "scheduler.chunk_tokens": 64,
            "server.engine_log": str(Path(tmp_path) / f"engine{len(started)}.jsonl"),
        }
        config = with_settings(EngineConfig(), plain | {k.replace("__", "."): v for k, v in settings.items()})
        started.append(Http(config))
        return started[-1].start()

    yield start
    for one in started:
        one.close()
