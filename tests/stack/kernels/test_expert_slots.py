"""Slots of experts, run on a CPU thread by thread: what is taken, filled and activated, and the whole op around a
product that checks the layouts which DeepGEMM wants and multiplies what is taken alone."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from stack.kernels import cuda_source
from stack.kernels.moe import deep_gemm_masked, routing, slots
from stack.kernels.moe.reference import moe
from stack.kernels.quantize_rows.reference import quantize_rows
from stack.kernels.quantized import QuantizedRows
from stack.kernels.swiglu_quant.reference import swiglu_quant
from tests.stack.kernels import cuda_on_cpu
from tools.gpu.micro import inputs
from tools.gpu.micro.compare import distance

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not cuda_on_cpu.can_run(), reason="needs g++ on x86-64"),
]


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_source.CudaKernel, "launch", cuda_on_cpu.launch)


def values(rows: slots.SlotRows) -> Tensor:
    """[E, S, C] in FP32."""
    return rows.codes_ESC.float() * rows.scale_ESG.repeat_interleave(128, 2)


def masked_product(a: Any, b: Any, out: Tensor, taken: Tensor, expected: int) -> None:
    """What DeepGEMM's masked product does, on the layouts that it takes without converting."""
    (codes, scales), (weight, blocks) = a, b
    (experts, capacity, _), groups = codes.shape, scales.shape[2]
    assert capacity % deep_gemm_masked.ALIGN == 0 and expected > 0 and taken.dtype == torch.int32
    assert scales.shape == (experts, capacity, groups) and scales.stride() == (capacity * groups, 1, capacity)
    for expert, count in enumerate(taken.tolist()):
        x = values(slots.SlotRows(codes[expert : expert + 1, :count], scales[expert : expert + 1, :count]))[0]
        scale = blocks[expert].repeat_interleave(128, 0).repeat_interleave(128, 1)
        out[expert, :count] = (x @ (weight[expert].float() * scale).t()).bfloat16()


def test_experts_fill_their_slots_from_the_front_and_rows_arrive_quantised() -> None:
    torch.manual_seed(0)
    ids = torch.stack([torch.randperm(6)[:3] for _ in range(40)]).int()
    ids[7, 1] = ids[39] = -1
    x = torch.randn(40, 320).bfloat16()[:, :256]
    taken = slots.take_slots(ids, 6, 128)
    assert torch.equal(taken.taken_E, torch.bincount(ids[ids >= 0], minlength=6).int())
    assert torch.equal(taken.position_TK < 0, ids < 0)
    place = taken.position_TK[ids >= 0]
    assert torch.equal(place // 128, ids[ids >= 0]) and len(place.unique()) == len(place)
    assert bool((place % 128 < taken.taken_E[place // 128]).all())
    filled, want = slots.fill_slots(x, taken), quantize_rows(x)
    of_token = torch.arange(40)[:, None].expand(40, 3)[ids >= 0]
    assert_same_rows(filled.codes_ESC.flatten(0, 1), filled.scale_ESG.flatten(0, 1), place.long(), want, of_token)
    places = routing.sort_by_expert(ids, 6, 16)
    copied = routing.scatter_quantized(x, places)
    assert_same_rows(copied.codes_TK, copied.scale_TG, places.position_TK[ids >= 0].long(), want, of_token)


def assert_same_rows(codes: Tensor, scales: Tensor, at: Tensor, want: QuantizedRows, of: Tensor) -> None:
    """Rows `at` are the rows `of` what the quantiser gives, to the bit."""
    assert torch.equal(codes.view(torch.uint8)[at], want.codes_TK.view(torch.uint8)[of])
    assert torch.equal(scales[at], want.scale_TG[of])


def test_the_activation_is_the_chain_of_two_ops_where_slots_are_taken() -> None:
    torch.manual_seed(1)
    gate_up = (torch.randn(2, 128, 512) * 8).bfloat16()
    held = slots.Slots(torch.zeros(1, 1), torch.tensor([3, 0], dtype=torch.int32), 128)
    for limit in (10.0, None):
        got, want = slots.activate_slots(gate_up, held, limit), swiglu_quant(gate_up[0, :3], limit=limit)
        assert got.codes_ESC.shape == (2, 128, 256)
        chain = want.codes_TK.float() * want.scale_TG.repeat_interleave(128, 1)
        assert distance(values(got)[0, :3], chain) < 2e-3


@pytest.mark.parametrize(("rows", "experts", "top_k"), [(1, 8, 2), (70, 8, 2), (131, 3, 3)])
def test_the_op_equals_its_reference(monkeypatch: pytest.MonkeyPatch, rows: int, experts: int, top_k: int) -> None:
    library = SimpleNamespace(fp8_m_grouped_gemm_nt_masked=masked_product)
    monkeypatch.setitem(sys.modules, "deep_gemm", library)
    torch.manual_seed(rows)
    call = inputs.moe("cpu", rows, experts, top_k, 256, 128, swiglu_quant)
    assert distance(deep_gemm_masked.moe(*call.args, **call.kwargs), moe(*call.args, **call.kwargs)) < 1e-2


def test_more_rows_than_its_buffers_allow_are_refused() -> None:
    call = inputs.moe("cpu", 513, 4, 2, 128, 128, swiglu_quant)
    with pytest.raises(ValueError, match="at most 512 rows, not 513"):
        deep_gemm_masked.moe(*call.args, **call.kwargs)
