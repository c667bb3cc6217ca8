import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("half_process.py")
FAST = {
    "disagg.heartbeat_interval_s": 0.3,
    "disagg.bootstrap_timeout_s": 4.0,
    "disagg.transfer_timeout_s": 6.0,
    "disagg.abort_ack_timeout_s": 3.0,
}


class Half:
    """A real process with a real hand-off; attributes call its methods."""

    def __init__(self, role, log, **settings):
        self.role = role
        self.settings = settings
        self.log = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, role, json.dumps(FAST | settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            text=True,
        )
        self.events = []

    def wait_ready(self):
        word, port = self.process.stdout.readline().split()
        assert word == "ready"
        self.port = int(port)
        return self

    def __getattr__(self, name):
        def call(**arguments):
            self.process.stdin.write(json.dumps({"do": name, **arguments}) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())

        return call

    def until(self, *wanted, timeout=10.0):
        """Poll until an event of each wanted (name, room) has come; returns them in that order."""
        deadline = time.monotonic() + timeout
        while True:
            self.events += self.poll()
            found = [next((e for e in self.events if (e["event"], e["room"]) == want), None) for want in wanted]
            if None not in found:
                return found if len(found) > 1 else found[0]
            assert time.monotonic() < deadline, f"{self.role}: {wanted} not among {self.events}"
            time.sleep(0.01)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def close(self):
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            self.process.stdin.close()
            try:
                assert self.process.wait(15) == 0
            finally:
                self.process.kill()
        self.log.close()


def _starting(folder):
    halves = []

    def start(role, **settings):
        halves.append(Half(role, folder / f"{role}{len(halves)}.log", **settings))
        return halves[-1].wait_ready()

    yield start
    for half in halves:
        half.close()


@pytest.fixture
def start_half(tmp_path):
    """Start a half of its own."""
    yield from _starting(tmp_path)


@pytest.fixture(scope="module")
def start_lasting_half(tmp_path_factory):
    """Start a half that the module's tests share."""
    yield from _starting(tmp_path_factory.mktemp("halves"))
