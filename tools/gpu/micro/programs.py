"""`python -m tools.gpu.micro.programs`: compiles every TileLang program of the kernels, a process each, side by side.

TileLang takes seconds for a program and keeps what it compiled in its own cache, where the checks find it. Needs nvcc
and no GPU.
"""

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stack.kernels import tile_program
from stack.kernels.devices import package_missing

LIMIT_S = 120


def programs() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Module, and the arguments of its `program`."""
    root = Path(tile_program.__file__).parent
    for path in sorted(root.glob("*/tilelang_*.py")):
        module = importlib.import_module(f"stack.kernels.{path.parent.name}.{path.stem}")
        yield from ((module.__name__, form) for form in getattr(module, "FORMS", ()))


def compile_programs() -> list[str]:
    """Why programs did not compile; nothing where TileLang is missing, since nothing can run there."""
    if package_missing("tilelang"):
        return []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return [error for error in pool.map(_in_a_process, range(len(list(programs())))) if error]


def _in_a_process(number: int) -> str:
    command = [sys.executable, "-m", "tools.gpu.micro.programs", str(number)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"program {number} was not compiled after {LIMIT_S} s"
    return "" if done.returncode == 0 else f"program {number}: {(done.stderr or done.stdout)[-600:]}"


def main() -> int:
    """One program by its number, or all of them. Exit code 1 where one does not compile."""
    if len(sys.argv) > 1:
        name, form = list(programs())[int(sys.argv[1])]
        tile_program.compiled(importlib.import_module(name).program(*form))
        return 0
    errors = compile_programs()
    sys.stderr.write("\n".join([*errors, f"{len(list(programs())) - len(errors)} programs compiled\n"]))
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
