"""The kernel bench: its inputs are valid, its comparison sees what it must, and on a GPU each implementation passes."""

import json
from pathlib import Path

import pytest
import torch

from stack.core.errors import ConfigError
from stack.kernels.catalog import OPS
from tools.gpu.micro.__main__ import bound, check_rows, function
from tools.gpu.micro.checks import Check, checks
from tools.gpu.micro.compare import distance, move, run
from tools.gpu.micro.parts import WITHOUT, variant
from tools.gpu.micro.shapes import shapes
from tools.gpu.micro.variants import chosen, is_measured

CHECKS = list(checks())
QUICK = [check for check in CHECKS if check.op not in ("moe", "index_select")]


def test_every_gpu_implementation_of_every_op_is_checked() -> None:
    covered = {(check.op, impl) for check in CHECKS for impl in check.impls}
    for op in OPS.values():
        for impl in op.impls:
            on_cpu_only = op.missing(impl, "cpu") is None and impl != "unfused"
            assert (op.name, impl) in covered or on_cpu_only or impl.startswith("torch_"), f"{op.name}: {impl}"


def test_every_timed_shape_names_an_implementation_and_has_a_floor() -> None:
    for shape in shapes():
        assert set(shape.impls) <= set(OPS[shape.op].impls)
        assert shape.floor_us > 0


@pytest.mark.parametrize("check", QUICK, ids=lambda check: f"{check.op}-{check.label}")
def test_the_reference_accepts_the_inputs_of_every_check(check: Check) -> None:
    torch.manual_seed(1)
    call = check.build()
    results = run(function(check.op, "reference", call.function), bound(call, "reference"), "cpu")
    assert results and all(bool(torch.isfinite(result.float()).all()) for result in results)


def test_a_copy_keeps_strides_and_shared_storage() -> None:
    wide = torch.arange(24.0).view(4, 6)
    left, right = move([wide[:, :2], wide[:, 2:]], "cpu")
    assert left.stride() == (6, 1) and left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()
    assert left.untyped_storage().data_ptr() != wide.untyped_storage().data_ptr()


@pytest.mark.parametrize("got", [torch.tensor([1.0, float("nan")]), torch.tensor([1.0])])
def test_a_nan_or_another_shape_is_infinitely_far(got: torch.Tensor) -> None:
    assert distance(got, torch.tensor([1.0, 2.0])) == float("inf")


def test_integers_count_what_differs() -> None:
    assert distance(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 5])) == 0.25


def test_a_variant_names_a_table_of_tiles_that_is_timed_once_it_is_there(tmp_path: Path) -> None:
    launch = {"warps": 4, "stages": 4}
    shape = {"experts": 72, "width": 4096, "inner": 2048, "choices": 2, "weights": "fp8", "gpu": "NVIDIA H200"}
    rows = {"1024": {"tile": {"rows": 32, "up": launch, "down": launch}}}
    table = tmp_path / "tiles.json"
    table.write_text(json.dumps({"schema": "moe_tiles/1", "shape": shape, "rows": rows}))
    with chosen("moe", f"triton_grouped@tiles={table}") as keywords:
        assert keywords["tiles"].tile(1000).rows == 32
    assert is_measured("triton_partial@kv_tile=32") and not is_measured("triton_grouped@tiles=never_tuned")
    with (
        pytest.raises(ConfigError, match="np1d tune moe writes one"),
        chosen("moe", "triton_grouped@tiles=never_tuned"),
    ):
        pass


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.op}-{check.label}")
def test_every_implementation_equals_its_reference(check: Check) -> None:
    rows = check_rows(check, set())
    ran = [row for row in rows if row["verdict"] != "missing"]
    if not ran:
        pytest.skip("; ".join(row["detail"] for row in rows))
    assert [row for row in ran if row["verdict"] != "ok"] == []


def test_parts_are_left_out_only_of_kernels_that_say_so() -> None:
    impl = "cuda_ring"
    module = OPS["mhc_boundary"].module(impl)
    for parts in WITHOUT.values():
        with chosen("mhc_boundary", variant(impl, parts)):
            assert (f"SKIP={parts}" in module._kernel(1).defines) == (parts != 0)
    assert module._kernel(1).defines == ()
