"""CUDA C++ kernels: compiled by nvcc into a cubin, kept by content, loaded through the driver.

A kernel that needs what Triton cannot say (warpgroup matrix instructions with a register operand, clusters) is a
`.cu` file beside the module that launches it. The cubin's name is the digest of its source and flags, so a packed
cache can be carried to another machine and a stale one is never used. Knows no op and no tensor layout; compiling
needs no GPU, launching does.
"""

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from stack.core.errors import MissingImplementationError

CACHE = Path(__file__).resolve().parents[2] / "build" / "cuda"
"""Where cubins are kept; safe to delete."""

FLAGS = ("-cubin", "-std=c++17", "-O3", "-lineinfo", "-gencode=arch=compute_90a,code=sm_90a")


def compiler() -> str | None:
    """Path of nvcc, or None where there is none."""
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(usual) if usual.exists() else None)


def compile_source(source: Path, defines: Sequence[str] = ()) -> Path:
    """The cubin of `source`, compiled unless the cache has it. Raises MissingImplementationError with nvcc's words."""
    digest = hashlib.sha256(_text(source) + repr((FLAGS, tuple(defines))).encode()).hexdigest()[:24]
    cubin = CACHE / f"{source.stem}-{digest}.cubin"
    if cubin.exists():
        return cubin
    nvcc = compiler()
    if nvcc is None:
        raise MissingImplementationError(f"{source.name} needs nvcc 12.4 or newer on the PATH to be compiled once")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        built = Path(work) / "out.cubin"
        command = [nvcc, *FLAGS, *(f"-D{d}" for d in defines), "-o", str(built), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingImplementationError(f"nvcc refused {source.name}: {done.stderr.strip()[-2000:]}")
        built.replace(cubin)
    return cubin


def _text(source: Path) -> bytes:
    """The source and what it includes of ours."""
    text = source.read_bytes()
    included = re.findall(rb'^#include "([^"]+)"', text, re.MULTILINE)
    return b"".join([text, *(_text(source.parent / name.decode()) for name in included)])


@dataclass(slots=True)
class CudaKernel:
    """One `extern "C"` kernel of a source, with the shared memory that it asks for."""

    source: Path
    name: str
    shared_bytes: int = 0
    cluster: int = 1
    defines: tuple[str, ...] = ()
    _function: Any = field(default=None, repr=False)

    def built(self, defines: tuple[str, ...]) -> "CudaKernel":
        """The same kernel with other definitions."""
        return CudaKernel(self.source, self.name, self.shared_bytes, self.cluster, defines)

    def launch(self, grid: tuple[int, int, int], threads: int, arguments: Sequence[Any]) -> None:
        """Enqueue on the current stream. Tensors pass their pointer, ints are 32-bit unless wrapped in a ctypes
        type."""
        if 0 in grid:
            return
        import torch

        if self._function is None:
            self._function = _load(self.source, self.defines, self.name, self.shared_bytes)
        values = [_argument(value) for value in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        check(
            driver().cuLaunchKernel(self._function, *grid, threads, 1, 1, self.shared_bytes, stream, pointers, None),
            f"launching {self.name}",
        )


def _argument(value: Any) -> Any:
    if isinstance(value, bool | int):
        return ctypes.c_int32(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    if value is None:
        return ctypes.c_void_p(0)
    if hasattr(value, "data_ptr"):
        return ctypes.c_void_p(value.data_ptr())
    return value


_RESERVED: dict[tuple[Path, str], int] = {}
"""Dynamic shared memory that each loaded function may use: the driver has one function however many kernels name it, so
one that needs less must not take from one that needs more."""


@cache
def driver() -> Any:
    """The CUDA driver's library. Raises OSError where there is none."""
    return ctypes.CDLL("libcuda.so.1")


def check(code: int, doing: str) -> None:
    """Raises RuntimeError in the driver's words unless it said success."""
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{doing} failed: {(text.value or b'unknown CUDA error').decode()}")


@cache
def _module(cubin: Path) -> Any:
    import torch

    torch.cuda.current_stream()  # the primary context must be current before the driver loads anything
    torch.empty(1, device="cuda")
    module = ctypes.c_void_p()
    check(driver().cuModuleLoad(ctypes.byref(module), str(cubin).encode()), f"loading {cubin.name}")
    return module


def _load(source: Path, defines: tuple[str, ...], name: str, shared_bytes: int) -> Any:
    function = ctypes.c_void_p()
    cubin = compile_source(source, defines)
    check(driver().cuModuleGetFunction(ctypes.byref(function), _module(cubin), name.encode()), f"finding {name}")
    needs_asking = shared_bytes > 16 * 1024  # with what the kernel declares itself, more than 48 KiB
    if needs_asking and shared_bytes > _RESERVED.get((cubin, name), 0):
        _RESERVED[cubin, name] = shared_bytes
        max_dynamic_shared = 8
        check(
            driver().cuFuncSetAttribute(function, max_dynamic_shared, shared_bytes),
            f"reserving {shared_bytes} bytes of shared memory for {name}",
        )
    return function
