"""CUDA kernels agree with their references when their threads run one after another on the CPU."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stack.kernels import cuda_source
from stack.kernels.catalog import OPS
from tests.stack.kernels import cuda_on_cpu
from tools.gpu.micro import inputs
from tools.gpu.micro.compare import distance, run
from tools.gpu.micro.inputs import Call

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not cuda_on_cpu.can_run(), reason="needs g++ and an x86-64 processor"),
]


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Launches run on the CPU."""
    monkeypatch.setattr(cuda_source.CudaKernel, "launch", cuda_on_cpu.launch)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=16))
    yield


def assert_agrees(op: str, impl: str, call: Call, tolerance: float) -> None:
    """Results and written arguments are within `tolerance` of the reference, relative to their norm."""
    want = run(getattr(OPS[op].module("reference"), op), call, "cpu")
    got = run(getattr(OPS[op].module(impl), op), call, "cpu")
    assert len(got) == len(want)
    errors = [distance(a, b) for a, b in zip(got, want, strict=True)]
    assert max(errors) <= tolerance, errors


@pytest.mark.parametrize(
    ("rows", "width", "first", "exact"),
    [(1, 4096, False, True), (37, 4096, False, True), (20, 4096, True, True), (130, 256, False, False)],
)
def test_boundary_in_clusters(rows: int, width: int, first: bool, exact: bool) -> None:
    torch.manual_seed(rows)
    call: Any = inputs.mhc_boundary("cpu", rows, width, first, bf16_fn=exact)
    assert_agrees("mhc_boundary", "cuda_cluster", call, 4e-3)
