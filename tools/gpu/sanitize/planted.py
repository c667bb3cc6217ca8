"""`python3 -m tools.gpu.sanitize.planted NAME`: runs one kernel of `planted.cu`, to see whether a sanitizer sees it."""

import sys
from pathlib import Path

import torch

from stack.kernels.cuda_source import CudaKernel

SOURCE = Path(__file__).with_name("planted.cu")


def main() -> None:
    """Run the kernel that is named, on 64 threads over as many integers."""
    out = torch.zeros(64, dtype=torch.int32, device="cuda")
    CudaKernel(SOURCE, f"planted_{sys.argv[1]}").launch((1, 1, 1), 64, [out, 64])
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
