"""Inputs of ops that take a row at a time: norms, activations, quantisers, products, experts, streams, sampling."""

from types import SimpleNamespace
from typing import Any

import torch

from tools.gpu.micro.inputs.drawing import BF16, F32, I32, Call, fp8_weight, poisoned_rows, quantized, strided

MOE = ("by_rows", "deep_gemm_contiguous", "triton_grouped", "deep_gemm_masked")
MOE_BESIDE = ("triton_beside", "cuda_grouped")


def rms_norm(device: str, rows: int, width: int) -> Call:
    """Strided rows and a gain."""
    return Call([strided(rows, width, device), torch.randn(width, device=device).to(BF16)], {"eps": 1e-5})


def rms_norm_quant(device: str, rows: int, width: int) -> Call:
    """The same, its result wanted quantised, too."""
    call = rms_norm(device, rows, width)
    return Call(call.args, call.kwargs | {"quantize_rows": None}, function="rms_norm_quant")


def gated_norm(device: str, rows: int, heads: int) -> Call:
    """Head rows, and gates cut out of a wider tensor."""
    gate = torch.randn(2, rows, heads, 128, device=device).to(BF16)[1]
    o = torch.randn(rows, heads, 128, device=device).to(BF16)
    return Call([o, gate, torch.randn(128, device=device).to(BF16)], {"eps": 1e-5})


def swiglu(device: str, rows: int, width: int) -> Call:
    """Rows wide enough for the clamp to act."""
    return Call([torch.randn(rows, 2 * width, device=device).mul_(6).to(BF16)], {"limit": 10.0})


def quantize_rows(device: str, rows: int, width: int) -> Call:
    """Strided rows, one group of zeros."""
    x = strided(rows, width, device)
    x[0, :128] = 0
    return Call([x])


def linear(device: str, rows: int, outputs: int, width: int) -> Call:
    """Rows cut out of wider ones, and a BF16 weight."""
    weight = (torch.randn(outputs, width, device=device) * width**-0.5).to(BF16)
    return Call([strided(rows, width, device), weight])


def linear_heads(device: str, rows: int, heads: int, outputs: int, width: int, by_row: bool = False) -> Call:
    """One BF16 weight a head."""
    weight = (torch.randn(heads, outputs, width, device=device) * width**-0.5).to(BF16)
    x = torch.randn(rows, heads, width, device=device).to(BF16)
    return Call([x, weight], {"by_row": by_row}, function="linear_heads")


def linear_fp8(device: str, rows: int, outputs: int, width: int) -> Call:
    """Codes of both operands with uneven scales."""
    return Call([quantized(rows, width, device), fp8_weight(outputs, width, device=device)], {"out_dtype": BF16})


def router(
    device: str, rows: int, experts: int, top_k: int, width: int, dtype: torch.dtype = F32, exact: bool = False
) -> Call:
    """BF16 rows and a weight (`exact`: of BF16 values); the last two rows are padding."""
    x = torch.randn(rows, width, device=device).to(BF16)
    weight = (torch.randn(experts, width, device=device) * width**-0.5).to(BF16 if exact else dtype).to(dtype)
    real = torch.tensor(max(1, rows - 2), dtype=I32, device=device)
    poisoned_rows(min(2, rows - 1), x)
    options = {"top_k": top_k, "scaling": 2.5, "normalize": True, "num_rows": real}
    return Call([x, weight, torch.randn(experts, device=device) * 0.1], options, parameters=(1,))


def moe(
    device: str, rows: int, experts: int, top_k: int, width: int, inner: int, swiglu_quant: Any, fp8: bool = True
) -> Call:
    """Routed rows over stacked experts; the last row is padding."""
    stacked = SimpleNamespace(
        gate_up=fp8_weight(experts, 2 * inner, width, device=device),
        down=fp8_weight(experts, width, inner, device=device),
    )
    if not fp8:
        stacked = SimpleNamespace(
            gate_up=(torch.randn(experts, 2 * inner, width, device=device) * width**-0.5).to(BF16),
            down=(torch.randn(experts, width, inner, device=device) * inner**-0.5).to(BF16),
        )
    score = torch.rand(rows, experts, device=device)
    ids = score.topk(top_k, 1).indices.to(I32)
    if rows > 2:
        ids[-1] = -1
    weights = torch.rand(rows, top_k, device=device)
    x = torch.randn(rows, width, device=device).to(BF16)
    return Call([x, ids, weights, stacked], {"limit": 10.0, "swiglu_quant": swiglu_quant})


def grouped_product(device: str, rows: int, experts: int, outputs: int, width: int) -> Call:
    """Rows that came to random experts, each expert's padded to 128 where there are many, to 64 where not."""
    align = 128 if rows >= 192 * experts else 64
    count = torch.bincount(torch.randint(experts, (rows,)), minlength=experts)
    layout = torch.repeat_interleave(torch.arange(experts, dtype=I32), -(-count // align) * align).to(device)
    args = [quantized(len(layout), width, device), fp8_weight(experts, outputs, width, device=device), layout, align]
    return Call(args, function="grouped_product")


def mhc_boundary(device: str, rows: int, width: int, first: bool = False, bf16_fn: bool = False) -> Call:
    """Streams, a pending output and a site's parameters."""
    fn = torch.randn(24, 4 * width, device=device) * 0.02
    fn = fn.to(BF16).float() if bf16_fn else fn
    site = SimpleNamespace(
        fn_MD=fn, base_M=torch.randn(24, device=device) * 0.5, scale_3=torch.rand(3, device=device) + 0.5
    )
    y = None if first else strided(rows, width, device)
    post = None if first else torch.rand(rows, 4, device=device) * 2
    comb = None if first else torch.rand(rows, 4, 4, device=device)
    weight = (torch.rand(width, device=device) + 0.5).to(BF16)
    streams = torch.randn(rows, 4, width, device=device).to(BF16)
    return Call([y, streams, post, comb, site, weight], {"hc_eps": 1e-6, "norm_eps": 1e-5, "iters": 20})


def sample(device: str, rows: int, vocab: int, kind: str) -> Call:
    """Logits, all under `greedy`, `top_p` or `all` (top-k, top-p and min-p), or `mixed`: every setting in turn."""
    logits = torch.randn(rows, vocab, device=device) * 3
    logits[:, 5:9] = logits[:, :4]
    settings = {
        "greedy": [(0.0, -1, 1.0, 0.0)],
        "top_p": [(0.7, -1, 0.95, 0.0)],
        "all": [(1.0, 50, 0.9, 0.05)],
    }
    rows_of = sum(settings.values(), [(1.0, -1, 1.0, 0.0)]) if kind == "mixed" else settings[kind]
    columns = zip(*(rows_of[i % len(rows_of)] for i in range(rows)), strict=True)
    kinds = (F32, I32, F32, F32)
    values = [torch.tensor(c, dtype=k, device=device) for c, k in zip(columns, kinds, strict=True)]
    return Call([logits, *values, torch.rand(rows, device=device)])
