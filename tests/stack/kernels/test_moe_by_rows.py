"""Which product the dispatch rule takes, by the number of rows, by the weights and by tuned tiles."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from stack.kernels.moe import by_rows, cuda_grouped
from stack.kernels.quantized import Fp8Weight

BF16 = torch.bfloat16


def fp8(*shape: int) -> Fp8Weight:
    return Fp8Weight(torch.empty(shape, dtype=torch.float8_e4m3fn), torch.empty(0))


def experts(inner: int = 256, channels: int = 256) -> SimpleNamespace:
    return SimpleNamespace(gate_up=fp8(4, 2 * inner, channels), down=fp8(4, channels, inner))


def shared(inner: int) -> SimpleNamespace:
    return SimpleNamespace(weights=SimpleNamespace(gate_up=fp8(2 * inner, 256), down=fp8(256, inner)))


@pytest.mark.parametrize(
    ("weights", "beside", "fits"),
    [
        (experts(), None, True),
        (experts(), shared(128), True),
        (experts(), shared(256), True),
        (experts(), shared(384), False),
        (experts(inner=192), None, False),
        (experts(channels=384), None, False),
        (SimpleNamespace(gate_up=torch.empty(4, 512, 256), down=torch.empty(4, 256, 256)), None, False),
        (experts(), SimpleNamespace(weights=SimpleNamespace(gate_up=torch.empty(256, 256), down=fp8(256, 128))), False),
    ],
)
def test_weights_that_the_streaming_kernel_takes(weights: Any, beside: Any, fits: bool) -> None:
    assert cuda_grouped.fits(weights, beside) is fits


@pytest.mark.parametrize(
    ("rows", "weights", "beside", "tiles", "taken"),
    [
        (1, experts(), None, None, "cuda_grouped"),
        (by_rows.MOST_FEW_ROWS, experts(), shared(128), None, "cuda_grouped"),
        (8, experts(), shared(128), object(), "triton_beside"),
        (8, experts(), None, object(), "triton_grouped"),
        (8, experts(inner=192), shared(128), None, "triton_beside"),
        (by_rows.MOST_FEW_ROWS + 1, experts(), None, None, "deep_gemm_contiguous"),
        (by_rows.MOST_FEW_ROWS + 1, experts(), None, object(), "deep_gemm_contiguous"),
    ],
)
def test_the_product_that_is_taken(
    monkeypatch: pytest.MonkeyPatch, rows: int, weights: Any, beside: Any, tiles: Any, taken: str
) -> None:
    asked: list[str] = []
    for name in ("cuda_grouped", "triton_beside", "triton_grouped"):
        monkeypatch.setattr(getattr(by_rows, name), "moe", lambda *_, name=name, **__: asked.append(name))
    many = lambda *_, **__: asked.append("deep_gemm_contiguous") or (None, None)  # noqa: E731
    monkeypatch.setattr(by_rows.deep_gemm_contiguous, "sorted_outputs", many)
    monkeypatch.setattr(by_rows, "combine", lambda *_: None)
    x, ids = torch.empty(rows, 256, dtype=BF16), torch.zeros(rows, 2, dtype=torch.int32)
    by_rows.moe(
        x, ids, torch.ones(rows, 2), weights, limit=None, swiglu_quant=lambda *_, **__: None, shared=beside, tiles=tiles
    )
    assert asked == [taken]
