"""How the times of KDA's verify and commit split: a verify's rows alone, its states alone; caches full of lines to be
written, as the other tables have them, or of lines that need not be.

    python3 -m tools.gpu.micro.kda_parts [--out FILE]

Without the first launch a verify's second reads what an earlier call left in the ring. Caches are cold before each, so
the second alone also fetches those rows from memory. What is read alone tells the rate of states beside these.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from stack.kernels.catalog import OPS
from stack.kernels.cuda_source import CudaKernel
from stack.kernels.kda_decode import streams
from tools.gpu.micro import inputs
from tools.gpu.micro.timing import capture, median_us

REQUESTS, WIDTH, HEADS, ACCEPTED = 132, 8, 16, 7
FORMS = (
    ("kda_verify", "cuda_chunk", "all"), ("kda_verify", "cuda_stream", "all"), ("kda_verify", "cuda_stream", "rows"),
    ("kda_verify", "cuda_stream", "states"), ("kda_verify", "cuda_stream_chunk", "states"),
    ("kda_verify", "cuda_stream_roles", "all"), ("kda_commit", "cuda_fold", "all"),
    ("kda_commit", "cuda_stream", "all"), ("kda_commit", "cuda_stream_chunk", "all"),
)  # fmt: skip
KEPT = {"all": "", "rows": streams.SPREAD.name, "states": "stream"}
"""What the names of the kernels hold that are launched."""


def main() -> None:
    """Times, a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = list(times())
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


def times() -> Iterator[dict[str, str | float]]:
    """Every form with both types of states; a commit is of one layer."""
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(1)
        calls = {
            "kda_verify": inputs.kda_verify("cuda", REQUESTS, WIDTH, HEADS, dtype),
            "kda_commit": inputs.kda_commit("cuda", REQUESTS, WIDTH, HEADS, 1, dtype, ACCEPTED),
        }
        pool = calls["kda_verify"].args[6]
        yield timed("", "copy of the states", "all", dtype, partial(torch.clone, pool))
        for op, impl, part in FORMS:
            function = getattr(OPS[op].module(impl), op)
            yield timed(op, impl, part, dtype, partial(function, *calls[op].args, **calls[op].kwargs))


def timed(op: str, impl: str, part: str, dtype: torch.dtype, run: Callable[[], Any]) -> dict[str, str | float]:
    """One row: microseconds with caches of lines to be written, and of lines that need not be."""
    with torch.inference_mode(), only(KEPT[part]):
        graph = capture(run)
        us, clean_us = (median_us(graph, is_clean=is_clean) for is_clean in (False, True))
    print(f"{op:11} {impl:18} {dtype!s:15} {part:7} {us:8.1f} us, clean {clean_us:8.1f} us", flush=True)
    return {"op": op, "impl": impl, "dtype": str(dtype), "part": part, "us": us, "clean_us": clean_us}


def only(word: str) -> ExitStack:
    """Launches of kernels with this word in their names alone."""
    stack, launch = ExitStack(), CudaKernel.launch

    def selected(kernel: CudaKernel, *arguments: Any) -> None:
        if word in kernel.name:
            launch(kernel, *arguments)

    stack.enter_context(mock.patch.object(CudaKernel, "launch", selected))
    return stack


if __name__ == "__main__":
    main()
