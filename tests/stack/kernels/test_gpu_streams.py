"""On a GPU, kernels over streams of states give the bits of those that take one state at a time, at a decode step's
size."""

from typing import Any

import pytest
import torch

from stack.kernels.catalog import OPS
from tools.gpu.micro import inputs
from tools.gpu.micro.compare import move, tensors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def results(op: str, impl: str, call: inputs.Call) -> list[torch.Tensor]:
    """What a call returns and writes, on copies of its arguments."""
    args, kwargs = move((list(call.args), dict(call.kwargs)), "cuda")
    with torch.inference_mode():
        returned = getattr(OPS[op].module(impl), op)(*args, **kwargs)
    return tensors(returned) + call.outputs(args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("requests", [5, 132])
def test_a_streamed_verify_has_the_bits_of_a_stepped_one(dtype: torch.dtype, requests: int) -> None:
    torch.manual_seed(requests)
    call: Any = inputs.kda_verify("cuda", requests, 8, 16, dtype)
    for got, want in zip(
        results("kda_verify", "cuda_stream", call), results("kda_verify", "cuda_chain", call), strict=True
    ):
        assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("accepted", [None, 7])
def test_a_streamed_commit_has_the_bits_of_a_stepped_one(dtype: torch.dtype, accepted: int | None) -> None:
    torch.manual_seed(1)
    call: Any = inputs.kda_commit("cuda", 132, 8, 16, 2, dtype, accepted)
    for got, want in zip(
        results("kda_commit", "cuda_stream", call), results("kda_commit", "cuda_fold", call), strict=True
    ):
        assert torch.equal(got, want)
