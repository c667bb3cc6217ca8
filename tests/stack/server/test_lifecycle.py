"""An instance starts, serves, drains and dies without leaving anything behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import psutil
import pytest

from tests.support.serving import ROOT, SCRIPTED, Server, serving, write_model


@pytest.fixture
def start(tmp_path):
    started = []

    def run(script=None, **settings):
        made = Server(write_model(tmp_path / f"model{len(started)}", script), settings)
        started.append(made)
        return made

    yield run
    for server in started:
        server.stop()


def is_alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def assert_gone(pid, within_s=3.0):
    deadline = time.monotonic() + within_s
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is left"
        time.sleep(0.02)


def in_background(server, body, path="/generate"):
    """A request on a thread; its result is a list that fills with the answer or the error."""
    result = []

    def run():
        try:
            result.append(httpx.post(f"{server.url}{path}", json=body, timeout=30))
        except httpx.HTTPError as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 5
    while not any(m["type"] == "generate" for m in server.heard()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return thread, result


def slow(tokens, **more):
    return {"input_ids": [900, 10], "sampling_params": {"max_new_tokens": tokens}, **more}


SLOW = {"rules": {"900": {"step_s": 0.05}}}


def test_the_http_process_never_imports_torch():
    code = (
        "import sys, pkgutil, importlib, stack.server\n"
        "for m in pkgutil.iter_modules(stack.server.__path__): importlib.import_module('stack.server.' + m.name)\n"
        "heavy = [m for m in ('torch', 'transformers', 'triton', 'nixl', 'numpy') if m in sys.modules]\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_port_in_use_is_one_sentence_and_starts_nothing(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = Server(write_model(tmp_path), {"server.port": port})
        assert server.wait_exit() == 2
    (line,) = server.log
    assert line.startswith(f"np1d: error: port {port} on 127.0.0.1 is in use; ")
    assert "server.port" in line
    assert not (tmp_path / "heard.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.json"], "no configuration file missing.json"),
        (["CONFIG", "--set", "server.prt=1"], "did you mean 'server.port'?"),
        (["CONFIG", "--set", "server.port"], "--set takes PATH=VALUE"),
        (["CONFIG", "--set", "server.port=many"], "server.port must be a whole number"),
        (["CONFIG", "--set", "model.path=/nowhere"], "no config.json in /nowhere"),
        (["CONFIG", "--set", "server.host=not.a.host.invalid"], "cannot listen on not.a.host.invalid"),
    ],
)
def test_a_mistake_in_the_configuration_is_one_sentence(tmp_path, arguments, sentence):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model": {"path": str(write_model(tmp_path))}, "server": {"port": 0}}))
    words = [str(file) if word == "CONFIG" else word for word in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "stack.server", *words, "--worker-module", SCRIPTED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert sentence in line


def test_while_loading_it_says_503_and_progress(start):
    server = start({"load_s": 6.0})
    answer = httpx.get(f"{server.url}/health")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "still loading" in answer.json()["error"]["message"]
    assert httpx.post(f"{server.url}/generate", json=slow(1)).status_code == 503
    assert httpx.get(f"{server.url}/server_info").json()["status"] == "loading"
    assert httpx.get(f"{server.url}/v1/models").status_code == 200
    assert httpx.get(f"{server.url}/metrics").status_code == 200
    server.wait_for(r"still loading after 5 s")
    server.wait_ready()
    assert server.is_healthy()


def test_stopping_while_loading_is_quick_and_clean(start):
    server = start({"load_s": 60.0})
    worker = server.worker_pid
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit(5) == 0
    assert_gone(worker)


@pytest.mark.parametrize(("exit_code", "code"), [(2, 2), (1, 1), (0, 1)])
def test_a_worker_that_dies_while_starting_is_named_with_its_last_words(start, exit_code, code):
    server = start({"exit_code": exit_code, "last_words": "no room for the weights"})
    assert server.wait_exit() == code
    assert server.log[-1] == (
        f"np1d: error while loading: the worker process ended with exit code {exit_code}: no room for the weights"
    )
    assert "[worker] no room for the weights" in server.log


def test_a_worker_that_dies_while_running_ends_every_request(start):
    server = start({"rules": {"900": {"step_s": 0.05}, "910": {"crash_after": 3}}}).wait_ready()
    worker = server.worker_pid
    thread, result = in_background(server, slow(1000))
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", f"{server.url}/generate", json={"input_ids": [910, 10], "stream": True}) as answer,
    ):
        answer.read()
    thread.join(5)
    assert result[0].status_code == 500
    assert "the worker process was killed by SIGKILL" in result[0].json()["error"]["message"]
    assert server.wait_exit() == 1
    assert server.log[-1].startswith("np1d: error: the worker process was killed by SIGKILL, by hand or by the kernel")
    assert "scripted crash" not in server.log[-1]
    assert_gone(worker)


def test_a_worker_that_declares_itself_lost_is_ended(start):
    server = start({"fatal": "CUDA error: an illegal memory access"})
    worker = server.worker_pid
    assert server.wait_exit() == 1
    assert server.log[-1].endswith("CUDA error: an illegal memory access")
    assert_gone(worker)


def test_a_worker_that_hangs_is_unhealthy_until_it_is_back(start):
    server = start(**{"server.worker_timeout_s": 1.0}).wait_ready()
    assert httpx.get(f"{server.url}/health").status_code == 200
    os.kill(server.worker_pid, signal.SIGSTOP)
    assert "no sign of life" in until_health(server, 503)
    assert httpx.post(f"{server.url}/generate", json={"input_ids": [5]}).status_code == 503
    os.kill(server.worker_pid, signal.SIGCONT)
    until_health(server, 200)


def test_a_step_that_does_not_end_is_unhealthy_and_a_long_one_is_not(start):
    script = {"rules": {"900": {"stuck_s": 4.0}}}
    server = start(script, **{"server.worker_timeout_s": 2.0, "server.step_timeout_s": 3.0}).wait_ready()
    thread, result = in_background(server, {"input_ids": [900], "sampling_params": {"max_new_tokens": 1}})
    assert "a step of the worker has not ended" in until_health(server, 503)
    until_health(server, 200)
    thread.join()
    assert result[0].status_code == 200


def until_health(server, status, within_s=15.0):
    """The text of /health, once it answers with `status`."""
    deadline = time.monotonic() + within_s
    while (answer := httpx.get(f"{server.url}/health")).status_code != status:
        assert time.monotonic() < deadline, f"/health still answers {answer.status_code}"
        time.sleep(0.05)
    return answer.text


def test_the_worker_dies_with_a_killed_server(start):
    server = start().wait_ready()
    worker = server.worker_pid
    server.process.kill()
    assert_gone(worker)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, "POST /drain"], ids=str)
def test_draining_finishes_what_runs_and_refuses_what_comes(start, how):
    server = start(SLOW).wait_ready()
    worker = server.worker_pid
    thread, result = in_background(server, slow(20))
    if isinstance(how, str):
        assert httpx.post(f"{server.url}/drain").json() == {"status": "draining", "num_running": 1}
    else:
        server.process.send_signal(how)
    server.wait_for("draining")
    assert httpx.get(f"{server.url}/health").status_code == 503
    refused = httpx.post(f"{server.url}/generate", json=slow(1))
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert not result
    thread.join(10)
    assert len(result[0].json()["output_ids"]) == 20
    assert server.wait_exit() == 0
    assert server.log[-1] == "np1d: drained"
    assert_gone(worker)


def test_a_second_signal_ends_everything(start):
    server = start(SLOW).wait_ready()
    worker = server.worker_pid
    thread, result = in_background(server, slow(1000))
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("draining")
    server.process.send_signal(signal.SIGINT)
    assert server.wait_exit(8) == 1
    thread.join(5)
    assert result[0].status_code == 503
    assert server.log[-1] == "np1d: stopped: 1 requests were ended"
    assert_gone(worker)


def test_a_worker_that_dies_while_draining_is_told(start):
    server = start({"rules": {"900": {"step_s": 0.05, "crash_after": 8}}}).wait_ready()
    thread, result = in_background(server, slow(20))
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit() == 1
    thread.join(5)
    assert result[0].status_code == 500


def test_a_ctrl_c_in_the_terminal_reaches_the_server_alone(start):
    server = start().wait_ready()
    assert os.getpgid(server.worker_pid) == server.worker_pid != os.getpgid(server.process.pid)


def test_server_and_worker_are_of_one_session_and_so_scheduled_alike(start):
    server = start().wait_ready()
    assert os.getsid(server.worker_pid) == os.getsid(server.process.pid)


def test_nothing_is_left_in_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serving(tmp_path / "model") as server:
        (folder,) = [path for path in tmp_path.iterdir() if path.name.startswith("np1d-")]
        assert folder.stat().st_mode & 0o077 == 0, "others could talk to the worker"
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert not folder.exists()
