"""Which part of the boundary in groups binds: its time without one part, or without several, beside the whole.

    python3 -m tools.gpu.micro.parts [--impl NAME,..] [--rows N,..] [--once] [--out FILE]

Kernels are compiled with parts left out, so their results are wrong: only times are taken, and no configuration
reaches such a kernel. `--once` launches each kernel once instead, for a profiler to look at.
"""

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from stack.kernels import cuda_source
from stack.kernels.catalog import OPS
from tools.gpu.micro import inputs
from tools.gpu.micro.timing import capture, median_us
from tools.gpu.micro.variants import chosen

OP, WIDTH = "mhc_boundary", 4096
LOADS, STORES, PRODUCTS, WAITS, RING, BALANCE = (1 << bit for bit in range(6))
"""Parts as `ring.cuh` numbers them: copies to the chip, results' stores, tensor-core products, waiting for other
blocks' sums, reading them at all, the balance of mixing matrices."""

WITHOUT = {
    "nothing": 0,
    "loads": LOADS,
    "stores": STORES,
    "loads, stores": LOADS | STORES,
    "products": PRODUCTS,
    "waits": WAITS,
    "waits, ring": WAITS | RING,
    "loads, stores, waits, ring": LOADS | STORES | WAITS | RING,
    "balance": BALANCE,
    "all of them": LOADS | STORES | PRODUCTS | WAITS | RING | BALANCE,
}


def main() -> None:
    """Times of what was asked for, a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--impl", default="cuda_ring")
    parser.add_argument("--rows", default="8192,1056,56")
    parser.add_argument("--once", action="store_true", help="one plain launch each, for a profiler")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    impls = options.impl.split(",")
    compile_all(impls)
    found = []
    for rows in map(int, options.rows.split(",")):
        for impl, words, us in times(impls, rows, options.once):
            found.append({"impl": impl, "rows": rows, "without": words, "us": us})
            print(f"{impl:16} {rows:6} rows without {words:28}", "" if us is None else f"{us:9.1f} us", flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


def variant(impl: str, parts: int) -> str:
    """The implementation with parts left out, as `variants` reads it."""
    return f"{impl}@{impl}.SKIP_FOR_TIMING={parts}"


def compile_all(impls: list[str]) -> None:
    """Every kernel at once."""
    with ThreadPoolExecutor() as pool:
        jobs = []
        for impl in impls:
            for parts in WITHOUT.values():
                with chosen(OP, variant(impl, parts)):
                    kernel = OPS[OP].module(impl)._kernel(1)
                jobs.append(pool.submit(cuda_source.compile_source, kernel.source, kernel.defines))
        for job in jobs:
            job.result()


def times(impls: list[str], rows: int, once: bool) -> Iterator[tuple[str, str, float | None]]:
    """(implementation, what is left out, microseconds unless `once`)."""
    torch.manual_seed(1)
    call = inputs.mhc_boundary("cuda", rows, WIDTH, bf16_fn=True)
    for impl in impls:
        function = getattr(OPS[OP].module(impl), OP)
        for words, parts in WITHOUT.items():
            with torch.inference_mode(), chosen(OP, variant(impl, parts)):
                if once:
                    function(*call.args, **call.kwargs)
                    torch.cuda.synchronize()
                    yield impl, words, None
                else:
                    yield impl, words, median_us(capture(lambda f=function: f(*call.args, **call.kwargs)))


if __name__ == "__main__":
    main()
