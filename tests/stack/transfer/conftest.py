import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from stack.transfer import Pools

SCRIPT = Path(__file__).with_name("target_process.py")
PAGES, PAGE_BYTES, SLOTS, SLOT_BYTES = 64, 4096, 8, 10000


class Target:
    """A real second process with real NIXL memory."""

    def __init__(self, folder):
        self.log = (folder / "target.log").open("ab")
        sizes = map(str, (PAGES, PAGE_BYTES, SLOTS, SLOT_BYTES))
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, *sizes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            cwd=Path(__file__).parents[3],
            env={"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": "/usr/bin:/bin"},
            text=True,
        )
        hello = self.ask(do="hello")
        self.metadata = bytes.fromhex(hello["metadata"])
        self.pools = msgspec.convert(hello["pools"], Pools)

    def ask(self, **command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def read(self, pool, index):
        return bytes.fromhex(self.ask(do="read", pool=pool, id=index)["bytes"])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait(10)
        self.log.close()


@pytest.fixture
def start_target(tmp_path):
    targets = []

    def start():
        targets.append(Target(tmp_path))
        return targets[-1]

    yield start
    for target in targets:
        target.close()
