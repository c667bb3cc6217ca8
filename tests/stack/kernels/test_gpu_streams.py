"""On a GPU, kernels over streams of states give the bits of those that take one state at a time, at a decode step's
size."""

from typing import Any

import pytest
import torch

from stack.kernels.catalog import OPS
from tools.gpu.micro import inputs, kda_forms
from tools.gpu.micro.compare import distance, move, tensors
from tools.gpu.micro.variants import chosen, implementation

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("op", "variant"), [(op, form) for op, forms in kda_forms.FORMS.items() for form in forms])
def test_a_launch_choice_leaves_results_as_they_are(op: str, variant: str, dtype: torch.dtype) -> None:
    """Bits where rows are stepped through; products may be contracted otherwise."""
    torch.manual_seed(2)
    call: Any = (
        inputs.kda_verify("cuda", 132, 8, 16, dtype)
        if op == "kda_verify"
        else inputs.kda_commit("cuda", 132, 8, 16, 2, dtype)
    )
    impl = implementation(variant)
    want = results(op, impl, call)
    with chosen(op, variant):
        got = results(op, impl, call)
    tolerance = 0.0 if impl == "cuda_stream" else 1e-4
    assert max(distance(a, b) for a, b in zip(got, want, strict=True)) <= tolerance
