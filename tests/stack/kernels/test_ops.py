"""Every implementation of every op agrees with the op's reference, on every case and every device that it serves."""

import re
from importlib import import_module

import pytest
import torch
from torch import Tensor

from stack.kernels import Op
from stack.kernels.binding import BoundOp
from stack.kernels.cases import Call, Case, Draw
from stack.kernels.catalog import OPS
from stack.kernels.quantized import QuantizedRows

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
ALL_OPS = list(OPS.values())


def cases_of(op: Op) -> tuple[Case, ...]:
    cases: tuple[Case, ...] = import_module(f"{op.package}.cases").CASES
    return cases


COMBINATIONS = [
    pytest.param(op, impl, case, dtype, id=f"{op.name}-{impl}-{case.name}-{str(dtype).removeprefix('torch.')}")
    for op in ALL_OPS
    for impl in op.impls
    for case in cases_of(op)
    for dtype in case.dtypes
]


def run(op: Op, impl: str, case: Case, call: Call) -> list[Tensor]:
    """Results, then the tensors that the op wrote, as plain tensors."""
    module = op.module(impl)
    result = BoundOp(op.name, impl, module).function(case.function or op.name)(*call.args, **call.kwargs)
    results = result if isinstance(result, tuple) else () if result is None else (result,)
    return [plain for part in (*results, *call.written) for plain in _plain(part, case)]


def _plain(part: Tensor | QuantizedRows, case: Case) -> list[Tensor]:
    if isinstance(part, QuantizedRows):
        if case.is_exact:
            return [part.codes_TK.float(), part.scale_TG]
        return [part.codes_TK.float() * part.scale_TG.repeat_interleave(128, 1)[:, : part.codes_TK.shape[1]]]
    part = part.sort(dim=-1).values if case.is_set else part
    return [part.float() if part.is_floating_point() else part]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("op", "impl", "case", "dtype"), COMBINATIONS)
def test_matches_reference(op: Op, impl: str, case: Case, dtype: torch.dtype, device: str) -> None:
    if reason := op.missing(impl, device):
        pytest.skip(reason)
    if device == "cuda" and dtype == torch.float32 and not impl.startswith("torch"):
        pytest.skip("GPU kernels take BF16 activations")
    call = case.build(Draw(device, dtype))
    unserved = getattr(op.module(impl), "unserved", None)
    if unserved and (reason := unserved(*call.args, **call.kwargs)):
        with pytest.raises(ValueError, match=re.escape(reason)):
            run(op, impl, case, call)
        return
    got = run(op, impl, case, call)
    want = run(op, "reference", case, case.build(Draw(device, dtype)))
    assert len(got) == len(want)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        assert_close(ours, theirs, case.tolerance(dtype))


def assert_close(got: Tensor, want: Tensor, tolerance: float) -> None:
    """NaN where the reference left poison; otherwise within `tolerance` of the value plus the root mean square."""
    assert torch.equal(got.isnan(), want.isnan())
    got, want = got.nan_to_num(), want.nan_to_num()
    if tolerance == 0.0:
        assert torch.equal(got, want)
        return
    got, want = got.double(), want.double()
    scale = want.abs() + want.square().mean().sqrt().clamp(min=1e-30)
    assert ((got - want).abs() / scale).max().item() <= tolerance


@pytest.mark.parametrize(("op", "impl"), [(op, impl) for op in ALL_OPS for impl in op.all_impls], ids=str)
def test_an_implementation_has_every_function_of_its_contract(op: Op, impl: str) -> None:
    try:
        module = op.module(impl)
    except ImportError as error:
        pytest.skip(f"needs a package that is not installed: {error}")
    assert all(callable(getattr(module, case.function or op.name, None)) for case in cases_of(op))


@pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)
def test_every_op_has_an_implementation_for_the_cpu(op: Op) -> None:
    assert any(op.missing(impl, "cpu") is None for impl in op.impls)
