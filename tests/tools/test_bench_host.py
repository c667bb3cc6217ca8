import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_last_line_is_the_result():
    small = ["--running", "8", "--context", "2048", "--prefixes", "50", "--repeats", "20"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/bench_host.py"), *small], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert re.fullmatch(r"decode step: \d+\.\d+ ms, admission: \d+\.\d+ ms", last)
