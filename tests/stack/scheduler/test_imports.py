import subprocess
import sys


def test_the_scheduler_imports_no_torch():
    code = "import sys, stack.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
