"""TileLang programs become CUDA for Hopper on a machine without a GPU, and what they become agrees with the reference.

The generated sources run on the CPU: their layouts, copies, barriers and matrix instructions are emulated. Each program
takes some seconds to lower, so the forms that differ least from another are checked nightly.
"""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("tilelang", reason="TileLang is not installed; envs/test.txt has it")

from stack.kernels import tile_program
from stack.kernels.catalog import OPS
from stack.kernels.sparse_mla import flat_pool, tilelang_merge, tilelang_partial, tilelang_prefill, tilelang_wide
from tests.stack.kernels import cuda_on_cpu, tile_on_cpu
from tools.gpu.micro import inputs
from tools.gpu.micro.compare import distance
from tools.gpu.micro.programs import programs

pytestmark = pytest.mark.slow

FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
nightly = pytest.mark.nightly
on_cpu = pytest.mark.skipif(not cuda_on_cpu.can_run(), reason="there is no C++ compiler for x86-64")


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled programs run on the CPU, on a device of 132 multiprocessors."""
    for module in (tilelang_partial, tilelang_prefill, tilelang_wide, tilelang_merge):
        module.kernel.cache_clear()
        monkeypatch.setattr(
            module, "compiled", lambda program: tile_on_cpu.EmulatedKernel(tile_on_cpu.lowered(program))
        )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))


def attention(dtype: torch.dtype, rows: int = 3, heads: int = 10, width: int = 200) -> tuple[Any, torch.Tensor]:
    """A call whose rows are empty, short and holed, over a strided pool, and the reference's result."""
    torch.manual_seed(9)
    call: Any = inputs.sparse_mla("cpu", rows, heads, width, 400, dtype, 64)
    want: torch.Tensor = importlib.import_module("stack.kernels.sparse_mla.reference").sparse_mla(
        *call.args, **call.kwargs
    )
    return call, want


@on_cpu
@pytest.mark.parametrize(
    ("dtype", "tile", "parts", "tolerance"),
    [
        pytest.param(FP8, 128, 1, 5e-2, id="fp8-whole-tile128"),
        pytest.param(BF16, 32, 2, 4e-3, id="bf16-parts-tile32"),
        pytest.param(FP8, 32, 3, 5e-2, id="fp8-parts-tile32", marks=nightly),
        pytest.param(BF16, 32, 1, 4e-3, id="bf16-whole-tile32", marks=nightly),
        pytest.param(FP8, 128, 2, 5e-2, id="fp8-parts-tile128", marks=nightly),
    ],
)
def test_parts_and_their_merge(dtype: torch.dtype, tile: int, parts: int, tolerance: float) -> None:
    call, want = attention(dtype)
    got = tilelang_partial.attend(*call.args, call.kwargs["scale"], tile, parts)
    assert distance(got, want) <= tolerance


@on_cpu
@pytest.mark.parametrize(
    ("impl", "dtype", "tolerance"),
    [
        pytest.param("tilelang_prefill", BF16, 4e-3, id="bf16"),
        pytest.param("tilelang_prefill_q8", FP8, 5e-2, id="q8"),
        pytest.param("tilelang_prefill", FP8, 4e-3, id="fp8", marks=nightly),
    ],
)
def test_many_rows(impl: str, dtype: torch.dtype, tolerance: float) -> None:
    call, want = attention(dtype)
    got = OPS["sparse_mla"].module(impl).sparse_mla(*call.args, **call.kwargs)
    assert distance(got, want) <= tolerance


@on_cpu
@nightly
@pytest.mark.parametrize(
    ("impl", "dtype", "stages", "tolerance"),
    [("tilelang_prefill", BF16, "BF16_STAGES", 4e-3), ("tilelang_prefill", FP8, "FP8_STAGES", 4e-3)],
)
def test_many_rows_with_two_tiles_in_flight(
    monkeypatch: pytest.MonkeyPatch, impl: str, dtype: torch.dtype, stages: str, tolerance: float
) -> None:
    monkeypatch.setattr(tilelang_prefill, stages, 2)
    call, want = attention(dtype)
    got = OPS["sparse_mla"].module(impl).sparse_mla(*call.args, **call.kwargs)
    assert distance(got, want) <= tolerance


RUN_ABOVE = [
    ("tilelang_partial", (128, True, True)), ("tilelang_partial", (32, False, False)), ("tilelang_merge", ()),
    ("tilelang_prefill", ("bf16",)), ("tilelang_prefill", ("q8",)),
]  # fmt: skip
PROGRAMS = [(name, form) for name, form in programs() if (name.rpartition(".")[2], form) not in RUN_ABOVE]


@pytest.mark.parametrize(("name", "form"), PROGRAMS, ids=str)
def test_the_other_programs_lower_for_hopper(name: str, form: tuple[Any, ...]) -> None:
    source = tile_program.cuda_source(importlib.import_module(name).program(*form))
    assert "__global__" in source and ("wgmma" in source or "mma_sync" in source)


@on_cpu
@nightly
@pytest.mark.parametrize(
    ("impl", "dtype", "tolerance"),
    [
        pytest.param("tilelang_prefill", BF16, 4e-3, id="bf16"),
        pytest.param("tilelang_prefill", FP8, 4e-3, id="fp8"),
        pytest.param("tilelang_prefill_q8", FP8, 5e-2, id="q8"),
    ],
)
def test_many_rows_of_64_heads(impl: str, dtype: torch.dtype, tolerance: float) -> None:
    call, want = attention(dtype, heads=64)
    got = OPS["sparse_mla"].module(impl).sparse_mla(*call.args, **call.kwargs)
    assert distance(got, want) <= tolerance


@pytest.mark.parametrize(
    ("rows", "dtype", "kv_tile", "tile", "parts"),
    [
        (131, FP8, 128, 32, 2),  # not enough rows to fill the device: the small tile, in parts
        (132, FP8, 128, 128, 1),
        (1024, FP8, 128, 128, 1),
        (1024, FP8, 32, 32, 1),
        (1024, BF16, 128, 32, 1),  # two bytes a value: a large tile would leave one block a multiprocessor
        (1, FP8, 128, 32, 33),
    ],
)
def test_the_large_tile_is_taken_where_rows_fill_the_device(
    monkeypatch: pytest.MonkeyPatch, rows: int, dtype: torch.dtype, kv_tile: int, tile: int, parts: int
) -> None:
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(tilelang_partial, "attend", lambda q, pool, index, scale, *choice: taken.append(choice))
    call = torch.zeros(rows, 16, 512, dtype=BF16), torch.zeros(2, 64, 512).to(dtype), torch.zeros(rows, 2112).int()
    tilelang_partial.sparse_mla(*call, scale=1.0, kv_tile=kv_tile)
    assert taken == [(tile, parts)]


def test_what_the_flat_form_cannot_address_is_refused() -> None:
    q, pool, index = torch.zeros(2, 16, 512, dtype=BF16), torch.zeros(2, 64, 512).to(FP8), torch.zeros(2, 64).int()
    flat = flat_pool.flat_call("a kernel", q, pool[:, ::2], index)
    assert (flat.page, flat.slot, flat.page_shift) == (64 * 32, 2 * 32, 5)
    with pytest.raises(ValueError, match="16 bytes"):
        flat_pool.flat_call("a kernel", q, torch.zeros(2, 64, 520).to(FP8)[:, :, 8:], index)
    with pytest.raises(ValueError, match="power-of-two"):
        flat_pool.flat_call("a kernel", q, pool[:, :48], index)
    with pytest.raises(ValueError, match="neighbouring"):
        flat_pool.flat_call("a kernel", q, pool, index[:, ::2])
