"""What the supervisor starts: out of the terminal's reach, and scheduled as one with everything that is measured."""

import os
import sys

from workflows.supervisor import processes


def test_processes_have_groups_of_their_own_in_one_session(tmp_path):
    """A load client in a session of its own waited for a processor for up to 275 ms behind servers in theirs."""
    waiting = [sys.executable, "-c", "import time; time.sleep(60)"]
    server, client = (processes.start(waiting, env={}, log=tmp_path / name, cwd=tmp_path) for name in ("s", "c"))
    try:
        assert os.getpgid(server.pid) == server.pid and os.getpgid(client.pid) == client.pid
        assert os.getsid(server.pid) == os.getsid(client.pid) == os.getsid(0)
    finally:
        for process in (server, client):
            process.kill()
            process.wait()
