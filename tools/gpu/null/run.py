"""`python -m tools.gpu.null.run CUDA MODULE ARGUMENT ...`: run a module on the GPU that does nothing, for what it
compiles; kernels of CUDA sources go to the folder CUDA.

Every step of an instance is said to have given a token for each row, since nothing else writes results. Measured tables
of tiles ask for the H200 by its name, which the library does not bear, lest a time of it pass for one of an H200.
"""

import runpy
import sys
from pathlib import Path

import torch
from torch import Tensor

from stack.kernels import cuda_source
from stack.runner.runner import Output


def _one_each(output: Output, token_RW: Tensor, count_R: Tensor | None = None) -> None:
    output.count_R.fill_(1)


def main() -> None:
    """Never returns where the module exits itself."""
    Output.store = _one_each  # type: ignore[method-assign, assignment]
    torch.cuda.get_device_name = lambda device=None: "NVIDIA H200"
    cuda_source.CACHE = Path(sys.argv[1])
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
