"""What goes to DeepGEMM's BF16 product and what to the library's own; the product itself is checked on GPUs."""

import sys
from types import SimpleNamespace

import pytest
import torch

from stack.kernels.linear import deep_gemm
from stack.kernels.linear.reference import linear

BF16, F32 = torch.bfloat16, torch.float32


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes that DeepGEMM was asked for."""
    asked: list[tuple[int, ...]] = []

    def bf16_gemm_nt(x_TK: torch.Tensor, weight_NK: torch.Tensor, y_TN: torch.Tensor) -> None:
        asked.append((*x_TK.shape, weight_NK.shape[0]))
        y_TN.copy_(x_TK.float() @ weight_NK.float().t())

    monkeypatch.setitem(sys.modules, "deep_gemm", SimpleNamespace(bf16_gemm_nt=bf16_gemm_nt))
    return asked


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "dtype", "out_dtype", "fits"),
    [
        (3, 128, 64, BF16, None, True),
        (3, 128, 6416, BF16, F32, True),
        (3, 128, 48, BF16, None, False),
        (3, 128, 72, BF16, None, False),
        (3, 96, 64, BF16, None, False),
        (3, 128, 64, F32, None, False),
        (0, 128, 64, BF16, None, False),
    ],
)
def test_a_product_goes_where_its_shape_and_type_say(products, rows, inputs, outputs, dtype, out_dtype, fits):
    x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    got, want = (function(x, weight, out_dtype=out_dtype) for function in (deep_gemm.linear, linear))
    assert got.dtype == want.dtype and got.shape == want.shape
    assert torch.allclose(got.float(), want.float(), rtol=1e-2, atol=1e-2)
    assert bool(products) == fits


@pytest.mark.parametrize(("first", "fits"), [(128, True), (4, False)])
def test_columns_of_wider_rows_fit_where_they_are_aligned(products, first, fits):
    x, weight = torch.randn(5, 384).to(BF16)[:, first : first + 128], torch.randn(64, 128).to(BF16)
    assert torch.allclose(deep_gemm.linear(x, weight).float(), linear(x, weight).float(), rtol=1e-2, atol=1e-2)
    assert bool(products) == fits
