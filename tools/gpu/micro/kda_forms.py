"""KDA's verify and commit over streams of states under every launch choice that a sweep times beside the ones in use.

    python3 -m tools.gpu.micro.kda_forms      # compiles them side by side; needs no GPU

A choice changes how states and rows reach the chip and not what is computed, so that a form gives the bits it gives
without. Single choices come first, so that a time says which one pays, then those that may add up.
"""

import argparse
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from stack.kernels import cuda_source
from stack.kernels.catalog import OPS
from stack.kernels.cuda_source import CudaKernel
from tools.gpu.micro.variants import chosen, implementation


def _variants(impl: str, *choices: str) -> tuple[str, ...]:
    """`NUMBERS_AHEAD=1 PARTS=2` as `variants` reads it."""
    return tuple(f"{impl}@" + ",".join(f"{impl}.{word}" for word in choice.split()) for choice in choices)


VERIFY = _variants("cuda_stream_roles", "NUMBERS_AHEAD=1", "NEAR_ROWS=1", "NUMBERS_AHEAD=1 NEAR_ROWS=1")

COMMIT_FP32 = _variants("cuda_stream", "NUMBERS_AHEAD=0", "PERMUTED_WINDOW=0", "PARTS=2") + _variants(
    "cuda_stream_chunk", "NUMBERS_AHEAD=0", "PERMUTED_WINDOW=0", "EARLY_ROWS=0"
)
COMMIT = COMMIT_FP32 + _variants("cuda_stream_chunk", "BLOCKS=2", "STAGES=2")
"""Two blocks and one state each is what FP32 states leave room for anyway."""

FORMS = {"kda_verify": VERIFY, "kda_commit": COMMIT}


def kernels() -> Iterator[CudaKernel]:
    """Of every form, with the choices in use and with the others, for both types of states."""
    for op, variants in FORMS.items():
        plain = dict.fromkeys(implementation(variant) for variant in variants)
        for variant in (*plain, *variants):
            with chosen(op, variant):
                module = OPS[op].module(implementation(variant))
                yield from (module._kernel(kind) for kind in ("bf16", "f32"))


def main() -> None:
    """Compile all of them, each set of definitions once."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    begin = time.monotonic()
    sets = {(kernel.source, kernel.defines) for kernel in kernels()}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        cubins = list(pool.map(lambda pair: cuda_source.compile_source(*pair), sets))
    print(f"{len(cubins)} cubins after {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
