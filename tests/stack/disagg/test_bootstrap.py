import errno
import http.client
import json
import queue
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stack.disagg.bootstrap import Resolver, ask_once, refuses

GOOD = {"address": "tcp://127.0.0.1:4000", "layout_hash": "ab", "instance": "i"}


@pytest.fixture
def serve():
    servers = []

    def start(answers):
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                status, body = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                del arguments

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return servers[-1].server_address[1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def look_up(port, timeout_s=2.0, refused_s=0.5, host="127.0.0.1"):
    answers = queue.SimpleQueue()
    Resolver(timeout_s, refused_s).look_up(host, port, answers.put, answers.put)
    return answers.get(timeout=10)


def test_an_endpoint_is_found(serve):
    assert look_up(serve([(200, json.dumps(GOOD).encode())])).instance == "i"


def test_an_instance_that_is_loading_is_waited_for(serve):
    port = serve([(503, b""), (503, b""), (200, json.dumps(GOOD).encode())])
    assert look_up(port).instance == "i"


def test_an_instance_that_loads_for_too_long_is_given_up(serve):
    assert "it answered 503" in look_up(serve([(503, b"")]), timeout_s=0.5)


def test_a_closed_port_is_given_up_sooner_than_a_slow_one():
    start = time.monotonic()
    assert "nobody listens there" in look_up(closed_port(), timeout_s=30.0, refused_s=0.3)
    assert time.monotonic() - start < 5


def test_a_name_that_cannot_be_resolved_is_given_up_soon():
    start = time.monotonic()
    assert "the name cannot be resolved" in look_up(80, timeout_s=120.0, host="no-such-host.invalid")
    assert time.monotonic() - start < 60  # the system's resolver may take its time


@pytest.mark.parametrize(
    ("error", "tries_again"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), False),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
        (OSError(errno.EHOSTUNREACH, "No route to host"), True),
    ],
    ids=["unknown name", "no answer of the name server", "no route"],
)
def test_a_host_that_cannot_be_reached_is_given_up_long_before_the_timeout(monkeypatch, error, tries_again):
    tries = []

    def fail(*arguments):
        tries.append(arguments)
        raise error

    monkeypatch.setattr("socket.create_connection", fail)
    start = time.monotonic()
    assert error.strerror in look_up(80, timeout_s=120.0, refused_s=0.3)
    assert time.monotonic() - start < 30
    assert (len(tries) > 1) == tries_again


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (404, b"", "does not serve /disagg/endpoint"),
        (200, b"<html>", "JSON"),
        (200, json.dumps({"address": "tcp://h:1"}).encode(), "layout_hash"),
        (200, json.dumps(GOOD | {"address": "ipc:///tmp/x"}).encode(), "is not tcp://host:port"),
        (200, json.dumps(GOOD | {"address": "tcp://h:99999"}).encode(), "is not tcp://host:port"),
        (200, json.dumps(GOOD | {"address": "tcp://h:1;tcp://g:2"}).encode(), "is not tcp://host:port"),
    ],
)
def test_what_is_no_prefill_instance_is_refused_at_once(serve, status, body, sentence):
    assert sentence in look_up(serve([(status, body)]), timeout_s=30.0)


def test_an_instance_that_listens_everywhere_is_reached_where_it_was_found(serve):
    everywhere = GOOD | {"address": "tcp://0.0.0.0:4000"}
    port = serve([(200, json.dumps(everywhere).encode())])
    assert ask_once("127.0.0.1", port).address == "tcp://127.0.0.1:4000"


def test_an_endless_answer_is_cut_off(serve):
    port = serve([(200, b" " * 10_000_000)])
    with pytest.raises((ValueError, http.client.HTTPException)):
        ask_once("127.0.0.1", port)


def test_only_a_refused_connection_proves_that_nobody_listens():
    assert refuses(f"tcp://127.0.0.1:{closed_port()}")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert not refuses(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
    assert not refuses("tcp://no-such-host.invalid:1")
