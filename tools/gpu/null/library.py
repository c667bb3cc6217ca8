"""A library that stands for a Hopper GPU where there is none: memory is the host's, launches do nothing.

With it loaded before CUDA's own libraries a program runs as on a GPU machine, up to the values of its results, so every
kernel that it asks for is compiled. `gpu.c` answers what needs an answer; the other functions of the driver, and those
of the runtime and of cuBLAS that the program's libraries call, are made here and return 0. Knows no kernel.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).with_name("gpu.c")
SONAMES = ("libcuda.so.1", "libnvrtc.so.13")
"""Names under which it is found by programs that open a library themselves."""


def build(folder: Path, callers: Iterable[Path], nvcc: str) -> Path:
    """Writes the library into `folder` under each name. `callers` are the libraries that will call it. Raises
    CalledProcessError with the compiler's words."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        answers, rest = Path(work) / "answers.o", Path(work) / "rest.c"
        compiler = (nvcc, "-x", "c", "-Xcompiler", "-O1,-fPIC,-w")
        _run(*compiler, "-c", "-o", str(answers), str(SOURCE))
        names = _needed(callers, _run(*compiler, "-E", str(SOURCE))) - set(_symbols("--defined-only", answers))
        rest.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(names)))
        for soname in SONAMES:
            built = Path(work) / soname
            options = ("-shared", "-O1", "-fPIC", "-w", f"-Wl,-soname,{soname}")
            _run("gcc", *options, "-o", str(built), str(answers), str(rest), "-ldl")
            built.replace(folder / soname)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """What a process is started with to see the library in `folder`. PyTorch keeps no memory of its own, so that what
    it is given holds zeros, and none of the kernels that it compiles by itself."""
    return {
        "LD_PRELOAD": " ".join(str(folder / soname) for soname in SONAMES),
        "TRITON_LIBCUDA_PATH": str(folder),
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "USE_PYTORCH_KERNEL_CACHE": "0",
        "CUDA_VISIBLE_DEVICES": "0",
    }


def _needed(callers: Iterable[Path], declared: str) -> set[str]:
    """Functions of the driver, by their names with and without a version, and what callers lack of the others."""
    driver = {name for name in re.findall(r"\b(cu[A-Z]\w*)\s*\(", declared) if not name.startswith("cuda")}
    driver |= {re.sub(r"(_v\d+)?(_pt[sd]z)?$", "", name) for name in driver}
    called = {name for library in callers for name in _symbols("--undefined-only", library)}
    return driver | {name for name in called if re.fullmatch(r"(cuda|cublas|cublasLt)[A-Z]\w*", name)}


def _symbols(kind: str, library: Path) -> list[str]:
    dynamic = ["-D"] if library.suffix == ".so" else []
    listed = _run("nm", *dynamic, kind, "--format=posix", str(library))
    return [line.split()[0].split("@")[0] for line in listed.splitlines() if line.strip()]


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout
