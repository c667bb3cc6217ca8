"""Writes `cpu.txt`, `test.txt` and `cuda.txt`: exact pins of what the project needs, and nothing else.

Knows nothing of package indexes: it follows the installed distributions' own requirements from the names in
pyproject.toml. The locks are complete, since they are installed without dependency resolution. Run it with the
environment's Python.
"""

import importlib.metadata as metadata
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
EXACT = {"torch": "2.13.0"}
"""Pins without the local label of one build, so that any build of that version may be taken."""
LEFT_OUT = {"nixl-cu12"}
"""Alternatives of something that is in the lock already."""
BUILD = ("setuptools",)
BENCHMARK_CLIENT = ("sglang", "datasets", "pillow", "pybase64", "requests", "tqdm", "nvidia-ml-py", "triton")
"""The published benchmark client comes without its engine's dependencies; these are what the client itself imports."""
WITHOUT_DEPENDENCIES = {"sglang", "triton"}
CUDA = {
    "torch": "2.11.0",
    "triton": "3.6.0",
    "tilelang": "0.1.12",
    "apache-tvm-ffi": "0.1.11",
    "torch-c-dlpack-ext": "0.1.5",
    "z3-solver": "4.15.4.0",
    "cloudpickle": "3.1.3",
    "sgl-deep-gemm": "0.1.5.post1",
    "fla-core": "0.6.0",
    "sgl-flash-mla": "1.0.0",
    "tokenspeed-flashkda": "0.0.1.post20260901",
    "nvidia-ml-py": "13.615.71",
}
"""What was seen to work together on H200s with driver 580, CUDA 13.0 and Python 3.12."""


def main() -> None:
    """Write the locks beside this file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    runtime = _closure([*project["dependencies"], *extras["engine"], *BUILD])
    testing = _closure([*extras["test"], *extras["check"], *BENCHMARK_CLIENT]) - runtime
    _write("cpu.txt", "The main job on a CPU: engine, router, load client, workflow, report.", runtime | {"nixl-cu13"})
    _write("cuda.txt", "The engine on H200s: CUDA 13.0, Python 3.12.", runtime | {"nixl-cu13", *CUDA}, CUDA)
    _write("test.txt", "Added to cpu.txt for `make test` and `make check`.", testing - {"nixl-cu13"})


def _closure(requirements: Iterable[str]) -> set[str]:
    seen: set[str] = set()
    waiting = [(name, extra) for text in requirements for name, extra in _expanded(Requirement(text))]
    done: set[tuple[str, str]] = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in done or name in LEFT_OUT:
            continue
        done.add((name, extra))
        seen.add(name)
        if name not in WITHOUT_DEPENDENCIES:
            waiting += _needed_by(name, extra)
    return seen


def _expanded(requirement: Requirement) -> Iterator[tuple[str, str]]:
    name = canonicalize_name(requirement.name)
    yield name, ""
    yield from ((name, extra) for extra in requirement.extras)


def _needed_by(name: str, extra: str) -> Iterator[tuple[str, str]]:
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield from _expanded(requirement)


def _write(file_name: str, purpose: str, names: set[str], pins: dict[str, str] = EXACT) -> None:
    lines = sorted(f"{name}=={pins.get(name) or metadata.version(name)}" for name in names)
    header = f"# {purpose}\n# Complete: install with `pip install --no-deps`. Written by envs/lock.py.\n"
    (ROOT / "envs" / file_name).write_text(header + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
