"""Runs TileLang programs on the CPU: the CUDA source that TileLang generates, compiled by a C++ compiler against
`emulated/`.

So layouts, barriers and copies are those that a GPU would be given. Slow, so for small shapes.
"""

import ctypes
import hashlib
import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from stack.kernels.tile_program import PASSES, TARGET
from tests.stack.kernels.cuda_on_cpu import CACHE, HEADERS, OPTIONS, translated

_NUMBERS = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "float32": ctypes.c_float}


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program's CUDA source, and how it is launched."""

    program: Any
    kernel: Any
    source: str

    @property
    def extents(self) -> dict[str, Any]:
        """Blocks and threads along each axis, in the program's numbers."""
        found: dict[str, Any] = dict(self.kernel.attrs["thread_extent"])
        return found


@cache
def lowered(program: Any) -> Lowered:
    """Without a GPU and without nvcc."""
    import tilelang
    from tilelang import tvm

    target = tvm.target.Target(TARGET)
    with target, tvm.transform.PassContext(config=PASSES):
        artifact = tilelang.lower(program, target=target)
    (kernel,) = artifact.device_mod.functions.values()
    return Lowered(program, kernel, artifact.kernel_source)


@dataclass(frozen=True, slots=True)
class EmulatedKernel:
    """In place of a compiled program: called with its tensors and numbers, in its order."""

    of: Lowered

    def __call__(self, *arguments: Any) -> None:
        """Run every block in turn."""
        program, values = self.of.program, dict(zip(self._names(), arguments, strict=True))
        grid = [self._extent(f"blockIdx.{axis}", values) for axis in "xyz"]
        passed = [_passed(values[p.name], str(p.dtype)) for p in self.of.kernel.params]
        assert len(values) == len(program.params)
        pointers = (ctypes.c_void_p * len(passed))(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in passed))
        run = _library(self.of.source, str(self.of.kernel.attrs["global_symbol"])).run
        run(pointers, (ctypes.c_uint * 3)(*grid), int(self.of.extents["threadIdx.x"]), 1, 1)

    def _names(self) -> list[str]:
        buffers = self.of.program.buffer_map
        return [buffers[p].name if p in buffers else p.name for p in self.of.program.params]

    def _extent(self, axis: str, values: dict[str, Any]) -> int:
        from tilelang import tvm

        expression = self.of.extents.get(axis, 1)
        if isinstance(expression, int):
            return expression
        numbers: dict[Any, Any] = {}

        def note(node: Any) -> None:
            if isinstance(node, tvm.tirx.Var):
                numbers[node] = tvm.tirx.const(values[node.name], node.dtype)

        tvm.tirx.stmt_functor.post_order_visit(tvm.tirx.Evaluate(expression), note)
        filled = tvm.tirx.stmt_functor.substitute(tvm.tirx.Evaluate(expression), numbers).value
        return int(tvm.arith.Analyzer().simplify(filled))


def _passed(value: Any, dtype: str) -> Any:
    if isinstance(value, torch.Tensor):
        assert value.is_contiguous()
        return ctypes.c_void_p(value.data_ptr())
    return _NUMBERS[dtype](value)


@cache
def _library(source: str, name: str) -> ctypes.CDLL:
    kept = re.sub(r"^#.*$", "", source, flags=re.MULTILINE)
    kept = re.sub(r"^extern \"C\" __global__ void \w+\([^;{]*\);$", "", kept, flags=re.MULTILINE)
    text = "#include <tile_on_cpu.h>\n" + translated(kept)
    text += (
        'extern "C" void run(void** p, const unsigned* grid, int threads, int cluster, unsigned seed) '
        f"{{ emulated::launch({name}, p, grid, threads, cluster, seed); }}\n"
    )
    stamp = "".join(path.read_text() for path in sorted(HEADERS.glob("*.h")))
    digest = hashlib.sha256((text + stamp + repr(OPTIONS)).encode()).hexdigest()[:24]
    built = CACHE / f"{name}-{digest}.so"
    if not built.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            cpp, out = Path(work) / "kernel.cpp", Path(work) / "kernel.so"
            cpp.write_text(text)
            command = ["g++", *OPTIONS, f"-I{HEADERS}", "-o", str(out), str(cpp)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr[-4000:])
            out.replace(built)
    return ctypes.CDLL(str(built))
