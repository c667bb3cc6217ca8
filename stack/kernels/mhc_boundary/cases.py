"""First boundary of a model, boundaries inside it, the last one; one row to several blocks."""

from types import SimpleNamespace

import torch
from torch import Tensor

from stack.kernels.cases import Call, Case, Draw
from stack.kernels.quantize_rows.torch_group import quantize_rows

N, C = 4, 256


def _site(draw: Draw) -> SimpleNamespace:
    rows = (2 + N) * N
    return SimpleNamespace(
        fn_MD=draw.normal(rows, N * C, std=0.02, dtype=torch.float32),
        base_M=draw.normal(rows, std=0.5, dtype=torch.float32),
        scale_3=draw.normal(3, mean=1.0, std=0.3, dtype=torch.float32),
    )


def _pending(draw: Draw, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    streams = draw.normal(rows, N, C)
    post, comb = draw.uniform(rows, N) * 2, torch.softmax(draw.normal(rows, N, N, dtype=torch.float32), -1)
    return draw.normal(rows, C), streams, post, comb


def _inside(rows: int) -> Case:
    def build(draw: Draw) -> Call:
        args = (*_pending(draw, rows), _site(draw), draw.normal(C, mean=1.0, std=0.1))
        return Call(args, {"hc_eps": 1e-6, "norm_eps": 1e-5, "iters": 20})

    return Case(f"inside_{rows}", build)


def _quantized(draw: Draw) -> Call:
    call = _inside(18).build(draw)
    return Call(call.args, {**call.kwargs, "quantize_rows": quantize_rows})


def _first(draw: Draw) -> Call:
    args = (None, draw.normal(17, N, C), None, None, _site(draw), draw.normal(C, mean=1.0, std=0.1))
    return Call(args, {"hc_eps": 1e-6, "norm_eps": 1e-5, "iters": 20})


def _final(draw: Draw) -> Call:
    return Call((*_pending(draw, 70), draw.normal(C, mean=1.0, std=0.1)), {"norm_eps": 1e-5})


def _settled(draw: Draw) -> Call:
    return Call((None, draw.normal(9, N, C), None, None, draw.normal(C, mean=1.0, std=0.1)), {"norm_eps": 1e-5})


def _mean(draw: Draw) -> Call:
    return Call(_pending(draw, 33))


CASES = (
    _inside(1),
    _inside(17),
    _inside(150),
    Case("quantized", _quantized, function="mhc_boundary_quant", float32=0.2, bfloat16=0.2),
    Case("first", _first),
    Case("final", _final, function="mhc_final"),
    Case("final_settled", _settled, function="mhc_final"),
    Case("mean", _mean, function="mhc_mean"),
)
