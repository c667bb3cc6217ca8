"""Runs CUDA kernels on the CPU: the sources of `stack/kernels`, compiled by a C++ compiler against `emulated/`.

Launches are replaced; everything around them (checks, allocations, arguments) is the wrappers' own code on CPU
tensors. Slow, so for small shapes. Serves kernels that reach the hardware through `hopper.cuh` alone.
"""

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stack.kernels import cuda_source

HEADERS = Path(__file__).parent / "emulated"
CACHE = cuda_source.CACHE.parent / "emulated"

OPTIONS = ("-std=c++17", "-O2", "-fno-strict-aliasing", "-w", "-fPIC", "-shared", "-DKERNELS_ON_CPU")

_DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")
_STATIC = re.compile(r"__shared__ (?:__align__\(\d+\) )?([\w:<>, ]+?) (\w+)((?:\[[^\]]*\])*);")


def translated(source: str) -> str:
    """The source with shared memory asked of the emulation, a place for each declaration and block."""
    source = _DYNAMIC.sub(r"\1* \2 = reinterpret_cast<\1*>(emulated::dynamic_shared());", source)
    return _STATIC.sub(r"typedef \1 \2_type\3; \2_type& \2 = emulated::shared<\2_type>(__COUNTER__);", source)


@cache
def library(source: Path, defines: tuple[str, ...], names: tuple[str, ...]) -> ctypes.CDLL:
    """The kernels `names` of a source as functions (parameters, grid, threads, cluster, seed)."""
    text = translated(source.read_text())
    text = "#include <hopper_on_cpu.h>\n" + text
    for name in names:
        text += (
            f'\nextern "C" void run_{name}(void** p, const unsigned* grid, int threads, int cluster, unsigned seed) '
            f"{{ emulated::launch({name}, p, grid, threads, cluster, seed); }}\n"
        )
    stamp = "".join(path.read_text() for path in sorted(HEADERS.glob("*.h")))
    with_headers = cuda_source._text(source)
    digest = hashlib.sha256(with_headers + (text + stamp + repr((defines, OPTIONS))).encode()).hexdigest()[:24]
    built = CACHE / f"{source.stem}-{digest}.so"
    if not built.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            cpp, out = Path(work) / "kernel.cpp", Path(work) / "kernel.so"
            cpp.write_text(text)
            paths = (f"-I{HEADERS}", f"-I{source.parent}", "-o", str(out), str(cpp))
            command = ["g++", *OPTIONS, *(f"-D{d}" for d in defines), *paths]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{source.name}: {done.stderr[-4000:]}")
            out.replace(built)
    return ctypes.CDLL(str(built))


def can_run() -> bool:
    """Whether there is a C++ compiler for x86-64."""
    import platform

    return shutil.which("g++") is not None and platform.machine() == "x86_64"


def launch(kernel: Any, grid: tuple[int, int, int], threads: int, arguments: Sequence[Any]) -> None:
    """In place of `CudaKernel.launch`."""
    if 0 in grid:
        return
    run = getattr(library(kernel.source, kernel.defines, (kernel.name,)), f"run_{kernel.name}")
    values = [cuda_source._argument(value) for value in arguments]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
    run(pointers, (ctypes.c_uint * 3)(*grid), threads, kernel.cluster, 1)
