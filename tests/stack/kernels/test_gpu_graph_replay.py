"""Every GPU implementation, libraries above all, is captured in a CUDA graph and replayed equal."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from stack.kernels.catalog import OPS
from stack.kernels.quantized import Fp8Weight, QuantizedRows
from tools.gpu.micro import step_inputs
from tools.gpu.micro.checks import Check, calls_library, checks
from tools.gpu.micro.compare import move
from tools.gpu.micro.replay import equal_bits, overwrite, pairs, replay_rows, with_parameters

CHECKS = list(checks())
OF_TORCH = {("linear", "torch_matmul"), ("sample", "torch_sort")}
"""What PyTorch itself does on a GPU; its other forms are for the CPU."""


def test_every_implementation_that_calls_a_library_is_replayed() -> None:
    replayed = {(check.op, impl) for check in CHECKS for impl in check.impls}
    of_libraries = {(op.name, impl) for op in OPS.values() for impl in op.impls if calls_library(op.name, impl)}
    known = {
        ("linear_fp8", "deep_gemm"),
        ("kda_chunk", "fla_chunk"),
        ("kda_chunk", "flash_kda"),
    }
    on_cpu_only = {(op, impl) for op, impl in of_libraries if impl.startswith("torch_")} - OF_TORCH
    assert known < of_libraries and of_libraries - on_cpu_only <= replayed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.op}-{check.label}")
def test_a_replay_equals_an_eager_call_on_fresh_inputs(check: Check) -> None:
    rows = replay_rows(check)
    ran = [row for row in rows if row["verdict"] != "missing"]
    if not ran:
        pytest.skip("; ".join(row["detail"] for row in rows))
    print("".join(f"\n{row['op']} {row['impl']}, {row['case']}: {row['detail']}" for row in ran if row["detail"]))
    assert [row for row in ran if row["verdict"] != "ok"] == []


def test_before_a_replay_everything_but_parameters_is_new() -> None:
    """Strided rows with their gaps, both halves of quantised rows; experts and the shared one stay."""
    old, new = (step_inputs.moe_with_shared("cpu", 5, 4, 2, 256, 128, 128, True) for _ in range(2))
    held = move((list(old.args), dict(old.kwargs)), "cpu")
    experts = held[0][3].gate_up.codes_NK.clone()
    result = torch.zeros(3)
    overwrite(held, (new.args, new.kwargs), poison=[result])
    assert bool(result.isnan().all())
    assert equal_bits([held[0][0], held[0][1], held[1]["rows"].codes_TK], [*new.args[:2], new.kwargs["rows"].codes_TK])
    assert equal_bits([held[0][3].gate_up.codes_NK], [experts])
    both = with_parameters((new.args, new.kwargs), held)
    assert both[0][3] is held[0][3] and both[1]["shared"].weights is held[1]["shared"].weights
    assert both[0][0] is new.args[0]


def test_a_differing_bit_a_nan_and_another_number_are_seen() -> None:
    one, nan = torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")])
    assert equal_bits([nan], [nan.clone()]) and not equal_bits([one], [nan])
    assert not equal_bits([one], [one + 2.0**-22]) and not equal_bits([one], [one, one])
    with pytest.raises(AssertionError, match="numbers built in"):
        list(pairs({"width": 8}, {"width": 7}))


def test_weights_passed_as_arguments_are_inputs() -> None:
    weight = Fp8Weight(torch.zeros(2, 2).to(torch.float8_e4m3fn), torch.ones(1, 1))
    rows = QuantizedRows(torch.zeros(2, 2).to(torch.float8_e4m3fn), torch.ones(2, 1))
    held = [rows, weight, SimpleNamespace(fn=torch.ones(1))]
    assert len(list(pairs(held, held))) == 4
