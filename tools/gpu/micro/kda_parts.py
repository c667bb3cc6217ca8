"""How the time of a verify over streams of states splits: its rows alone, its states alone, both.

    python3 -m tools.gpu.micro.kda_parts [--out FILE]

Without the first launch the second reads what an earlier call left in the ring. Caches are cold before each, so the
second alone also fetches those rows from memory.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from unittest import mock

import torch

from stack.kernels.catalog import OPS
from stack.kernels.cuda_source import CudaKernel
from stack.kernels.kda_decode import streams
from tools.gpu.micro import inputs
from tools.gpu.micro.timing import capture, median_us

PARTS = {"both": (), "rows alone": (streams.SPREAD.name,), "states alone": ("stream",)}
"""Names whose launches are kept, by what they are called; all where there are none."""


def main() -> None:
    """Times, a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = list(times())
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


def times() -> Iterator[dict[str, str | float]]:
    """Both forms, both types of states."""
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(1)
        call = inputs.kda_verify("cuda", 132, 8, 16, dtype)
        for impl in ("cuda_stream", "cuda_stream_chunk"):
            function = OPS["kda_verify"].module(impl).kda_verify
            for part, names in PARTS.items():
                with torch.inference_mode(), only(names):
                    us = median_us(capture(partial(function, *call.args, **call.kwargs)))
                print(f"{impl:18} {dtype!s:14} {part:13} {us:8.1f} us", flush=True)
                yield {"impl": impl, "dtype": str(dtype), "part": part, "us": us}


def only(names: tuple[str, ...]) -> ExitStack:
    """Launches of kernels with one of these words in their names; all of them where there are none."""
    stack = ExitStack()
    if names:
        launch = CudaKernel.launch

        def selected(kernel: CudaKernel, *arguments: object) -> None:
            if any(word in kernel.name for word in names):
                launch(kernel, *arguments)  # type: ignore[arg-type]

        stack.enter_context(mock.patch.object(CudaKernel, "launch", selected))
    return stack


if __name__ == "__main__":
    main()
