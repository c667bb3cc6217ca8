"""Every GPU kernel compiles for Hopper on a machine without a GPU, with the arguments that its own wrapper passes.

Launches are replaced by compilations: Triton's by a warm-up against a stated target, CUDA sources' by nvcc where it
is installed.
"""

import functools
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from stack.core.memory import ReplayRing  # noqa: E402
from stack.kernels import cuda_source, tensor_map  # noqa: E402
from stack.kernels.catalog import OPS  # noqa: E402
from stack.kernels.quantize_rows.torch_group import quantize_rows  # noqa: E402
from stack.kernels.quantized import Fp8Weight  # noqa: E402

pytestmark = pytest.mark.slow

FP8, BF16, I32 = torch.float8_e4m3fn, torch.bfloat16, torch.int32


class _Target:
    """What Triton asks of a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a compilation asked the driver for {name}")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that were compiled in place of launches."""
    names: list[str] = []

    def compile_triton(self: Any, grid: Any) -> Any:
        names.append(self.fn.__name__)
        return functools.partial(self.run, grid=grid, warmup=True)

    def compile_cuda(self: cuda_source.CudaKernel, grid: Any, threads: int, arguments: Any) -> None:
        if cuda_source.compiler() is not None:
            cubin = cuda_source.compile_source(self.source, self.defines)
            assert self.name.encode() in cubin.read_bytes()
        names.append(self.name)

    from triton.runtime import driver

    driver.set_active(_Target())  # type: ignore[arg-type]
    monkeypatch.setattr(JITFunction, "__getitem__", compile_triton)
    monkeypatch.setattr(cuda_source.CudaKernel, "launch", compile_cuda)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132), raising=True
    )
    return names


def impl(op: str, name: str) -> Any:
    """An implementation's function, whatever the device."""
    return getattr(OPS[op].module(name), op)


def bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=BF16)


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=I32)


def fp8_weight(*shape: int) -> Fp8Weight:
    return Fp8Weight(torch.zeros(shape).to(FP8), torch.ones(*shape[:-2], shape[-2] // 128, shape[-1] // 128))


@pytest.mark.parametrize("width", [512, 4096])
def test_row_kernels(compiled: list[str], width: int) -> None:
    impl("rms_norm", "triton_rows")(bf16(3, width), bf16(width), eps=1e-5)
    module = OPS["rms_norm"].module("triton_quant")
    module.rms_norm_quant(bf16(3, width - 128), bf16(width - 128), eps=1e-5, quantize_rows=None)
    impl("swiglu", "triton_rows")(bf16(3, 2 * width), limit=10.0)
    impl("swiglu", "triton_rows")(bf16(3, 2 * width), limit=None)
    impl("quantize_rows", "triton_group")(bf16(3, width))
    impl("swiglu_quant", "triton_fused")(bf16(3, 2 * width), limit=10.0)
    impl("gated_norm", "triton_rows")(bf16(3, 16, 128), bf16(3, 16, 128), bf16(128), eps=1e-5)
    assert set(compiled) == {"_norm", "_norm_quant", "_swiglu", "_quantize", "_fused", "_gate"}


@pytest.mark.parametrize("dtype", [BF16, FP8])
def test_latents(compiled: list[str], dtype: torch.dtype) -> None:
    pool = torch.zeros(4, 64, 512).to(dtype)
    impl("latent_write", "triton_scatter")(bf16(3, 512), bf16(512), pool, torch.zeros(3, dtype=torch.int64), eps=1e-5)
    for splits in (1, 3):
        for name in ("cuda_gather", "cuda_paired"):
            impl("sparse_mla", name)(bf16(3, 16, 512), pool, ints(3, 2112), scale=0.1, num_splits=splits)
    for tile in (32, 128):
        impl("sparse_mla", "triton_partial")(bf16(140, 16, 512), pool, ints(140, 2112), scale=0.1, kv_tile=tile)
    assert {"_write", "_merge", "_attend"} <= set(compiled)


@pytest.mark.parametrize("name", ["cuda_fused", "cuda_unfused", "cuda_long"])
def test_convolution(compiled: list[str], name: str) -> None:
    state = torch.zeros(3, 16, 3, 128, 3, dtype=BF16)
    impl("kda_conv", name)(
        bf16(5, 6144), torch.zeros(6144, 4), state, ints(2), ints(3), ints(5), ints(5), torch.ones(2, dtype=torch.bool)
    )
    assert ("kda_conv_long" if name == "cuda_long" else "kda_conv") in compiled


@pytest.mark.parametrize("lens", [(5,), (4096, 64, 1)])
def test_segments(compiled: list[str], lens: tuple[int, ...]) -> None:
    rows, requests = sum(lens), len(lens)
    wide, state = bf16(rows, 16, 128), torch.zeros(5, 16, 2, 128, 128)
    impl("kda_chunk", "cuda_prepared")(
        wide, wide, wide, wide, bf16(rows, 16), torch.zeros(16), torch.zeros(16, 128), state[:, :, 0], ints(requests),
        ints(requests + 1), torch.ones(requests, dtype=torch.bool), lower_bound=-5.0, extend_lens=lens,
    )  # fmt: skip
    assert ("_summaries" in compiled) == (max(lens) > 2000) and {"kda_prepare", "_entries", "_scan"} <= set(compiled)


def test_gates(compiled: list[str]) -> None:
    from stack.kernels.kda_chunk import segments, split_chunk

    cut = segments.plan((70,), torch.device("cpu"))
    split_chunk._gate_rows(bf16(70, 16, 128), bf16(70, 16), torch.zeros(16), torch.zeros(16, 128), cut, -5.0)
    assert compiled == ["kda_gates"]


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_recurrent_steps(compiled: list[str], dtype: torch.dtype) -> None:
    state, conv = torch.zeros(3, 16, 2, 128, 128, dtype=dtype), torch.zeros(3, 16, 2, 3, 128, 3, dtype=BF16)
    heads = torch.zeros(2, 3, 8, 16, 128)
    ring = ReplayRing(
        k_NWHD=heads.to(BF16), v_NWHD=heads.to(BF16), g_NWHD=heads, beta_NWH=heads[..., 0], x_NWX=bf16(2, 3, 8, 6144)
    )
    layer = ReplayRing(
        k_NWHD=ring.k_NWHD[0],
        v_NWHD=ring.v_NWHD[0],
        g_NWHD=ring.g_NWHD[0],
        beta_NWH=ring.beta_NWH[0],
        x_NWX=ring.x_NWX[0],
    )
    parameters = (torch.zeros(6144, 4), torch.zeros(16), torch.zeros(16, 128), state[:, :, 0], conv[:, :, 0], ints(2))
    for name in ("cuda_step", "cuda_step_fast"):
        impl("kda_decode", name)(bf16(2, 6144), bf16(2, 16, 128), bf16(2, 16), *parameters, lower_bound=-5.0)
    rows = (bf16(16, 6144), bf16(16, 16, 128), bf16(16, 16))
    for name in (
        "cuda_chain",
        "cuda_chunk",
        "cuda_chunk_fast",
        "cuda_stream",
        "cuda_stream_chunk",
        "cuda_stream_roles",
    ):
        impl("kda_verify", name)(*rows, *parameters, ints(2), layer, width=8, lower_bound=-5.0)
    for name in ("cuda_fold", "cuda_chunk", "cuda_fold_fast", "cuda_stream", "cuda_stream_chunk"):
        impl("kda_commit", name)(state, conv, ring, ints(2), ints(2), ints(2))
    assert len(compiled) == 15


@pytest.mark.parametrize("dtype", [BF16, FP8])
def test_indexer(compiled: list[str], dtype: torch.dtype) -> None:
    codes, scales = torch.zeros(4, 64, 128).to(dtype), torch.zeros(4, 64) if dtype == FP8 else None
    table, rows = ints(3, 4), (ints(2), ints(6), ints(6))
    impl("index_write", "cuda_pool")(
        bf16(6, 128), bf16(6, 128), bf16(128), bf16(128), bf16(4, 128), bf16(3, 12, 2, 128), codes, scales, table,
        *rows,
        ints(3), torch.zeros(6, dtype=torch.int64),
    )  # fmt: skip
    bounds = {"kpool": 4, "budget": 512, "max_context": 1000, "workspace_bytes": 1 << 20}
    for name in ("paged", "paged_wgmma", "paged_held") if dtype == FP8 else ("paged",):
        impl("index_select", name)(bf16(6, 32, 128), torch.zeros(6, 32), codes, scales, table, *rows, **bounds)
    assert {"index_pool", "index_ring", "_score", "top_pools"} <= set(compiled)
    assert ({"page_scores_1", "top_pools_held_5"} <= set(compiled)) == (dtype == FP8)


def test_selection_for_rows_of_a_verify(compiled: list[str]) -> None:
    place = (torch.zeros(4, 64, 128).to(FP8), torch.zeros(4, 64), ints(3, 4), ints(2), ints(16), ints(16))
    bounds = {"kpool": 4, "budget": 512, "max_context": 1000, "workspace_bytes": 1 << 20}
    impl("index_select", "paged_held")(bf16(16, 32, 128), torch.zeros(16, 32), *place, **bounds)
    assert {"page_scores_8", "top_pools_held_5"} <= set(compiled)


def test_kernels_around_a_library(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged keys for DeepGEMM's scores, and slots of experts for its masked product."""
    library = SimpleNamespace(
        fp8_mqa_logits=lambda q, keys, *_, max_seqlen_k, **__: torch.zeros(q.shape[0], max_seqlen_k),
        fp8_m_grouped_gemm_nt_masked=lambda *_: None,
    )
    monkeypatch.setitem(sys.modules, "deep_gemm", library)
    keys, rows = (torch.zeros(4, 64, 128).to(FP8), torch.zeros(4, 64)), (ints(1), ints(70), ints(70))
    bounds = {"kpool": 4, "budget": 512, "max_context": 1000, "workspace_bytes": 1 << 20}
    impl("index_select", "deep_gemm")(bf16(70, 32, 128), torch.zeros(70, 32), *keys, ints(3, 4), *rows, **bounds)
    assert {"_stage", "_bounds", "top_pools"} <= set(compiled)
    compiled.clear()
    experts = SimpleNamespace(gate_up=fp8_weight(8, 256, 256), down=fp8_weight(8, 256, 128))
    call = (bf16(4, 256), ints(4, 2), torch.zeros(4, 2), experts)
    impl("moe", "deep_gemm_masked")(*call, limit=10.0, swiglu_quant=None)
    assert compiled == ["moe_take_slots", "moe_fill_slots", "moe_activate_slots", "moe_combine"]


def test_indices_for_a_library_without_pages(compiled: list[str]) -> None:
    from stack.kernels.sparse_mla.flat_index import flat_index

    assert flat_index(ints(3, 2112), torch.zeros(4, 64, 512, dtype=BF16), 128).shape == (3, 1, 2176)
    assert compiled == ["_place_rows"]


def test_every_triton_kernel_is_named_here() -> None:
    """Each that is launched anywhere under `stack/kernels` stands in an assertion of this file."""
    launched = set()
    for path in Path(cuda_source.__file__).parent.rglob("*.py"):
        text = path.read_text()
        kernels = re.findall(r"@triton.jit\s+def (\w+)", text)
        launched |= {name for name in kernels if f"{name}[" in text}
    assert len(launched) > 15 and launched <= set(re.findall(r'"(\w+)"', Path(__file__).read_text()))


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (72, 2), (288, 8)])
def test_router(compiled: list[str], dtype: torch.dtype, experts: int, top_k: int) -> None:
    options = {"top_k": top_k, "scaling": 2.5, "normalize": True}
    impl("router", "triton_router")(
        bf16(5, 256), torch.zeros(experts, 256, dtype=dtype), torch.zeros(experts), **options
    )
    assert compiled == ["_scores", "_choose"]


@pytest.mark.parametrize("rows", [16, 300, 1000])
def test_block_product(compiled: list[str], rows: int) -> None:
    x = quantize_rows(torch.zeros(rows, 256))
    impl("linear_fp8", "triton_block")(x, fp8_weight(256, 256), out_dtype=BF16)
    assert compiled == ["_product"]


@pytest.mark.parametrize("rows", [4, 64, 600])
@pytest.mark.parametrize("fp8", [True, False])
def test_experts(compiled: list[str], rows: int, fp8: bool) -> None:
    if fp8:
        experts = SimpleNamespace(gate_up=fp8_weight(8, 256, 256), down=fp8_weight(8, 256, 128))
    else:
        experts = SimpleNamespace(gate_up=bf16(8, 256, 256), down=bf16(8, 256, 128))
    act = impl("swiglu_quant", "triton_fused")
    call = (bf16(rows, 256), ints(rows, 2), torch.zeros(rows, 2), experts)
    impl("moe", "triton_grouped")(*call, limit=10.0, swiglu_quant=act)
    assert {"moe_route", "_grouped", "moe_combine"} <= set(compiled)
    compiled.clear()
    weights = {"gate_up": fp8_weight(256, 256), "down": fp8_weight(256, 128)}
    if not fp8:
        weights = {"gate_up": bf16(256, 256), "down": bf16(256, 128)}
    shared = SimpleNamespace(weights=SimpleNamespace(**weights))
    impl("moe", "triton_beside")(*call, limit=10.0, swiglu_quant=act, shared=shared)
    quantised, between = (["_quantize"], "_fused") if fp8 else ([], "_swiglu")
    assert compiled == ["moe_route", *quantised, "_beside", between, "_beside", "moe_combine_added"]


@pytest.mark.parametrize(("rows", "tile"), [(4, 16), (60, 32), (600, 64)])
@pytest.mark.parametrize("has_shared", [False, True])
def test_experts_whose_weights_stream(
    monkeypatch: pytest.MonkeyPatch, compiled: list[str], rows: int, tile: int, has_shared: bool
) -> None:
    monkeypatch.setattr(tensor_map, "byte_matrix", lambda *_: None)
    experts = SimpleNamespace(gate_up=fp8_weight(8, 512, 256), down=fp8_weight(8, 256, 256))
    weights = SimpleNamespace(gate_up=fp8_weight(256, 256), down=fp8_weight(256, 128))
    shared = SimpleNamespace(weights=weights) if has_shared else None
    call = (bf16(rows, 256), ints(rows, 2), torch.zeros(rows, 2), experts)
    impl("moe", "cuda_grouped")(*call, limit=10.0, swiglu_quant=None, shared=shared)
    last = "moe_combine_added" if has_shared else "moe_combine"
    assert compiled == ["moe_route", "_quantize", f"moe_up_{tile}", f"moe_down_{tile}", last]


@pytest.mark.parametrize("name", ["cuda_fused", "cuda_unfused", "cuda_quant"])
@pytest.mark.parametrize("width", [256, 4096])
def test_boundary(compiled: list[str], name: str, width: int) -> None:
    site = SimpleNamespace(fn_MD=torch.rand(24, 4 * width), base_M=torch.zeros(24), scale_3=torch.zeros(3))
    streams = (bf16(5, width), bf16(5, 4, width), torch.zeros(5, 4), torch.zeros(5, 4, 4))
    options = {"hc_eps": 1e-6, "norm_eps": 1e-5}
    impl("mhc_boundary", name)(*streams, site, bf16(width), iters=20, **options)
    module = OPS["mhc_boundary"].module(name)
    module.mhc_final(*streams, bf16(width), norm_eps=1e-5)
    assert "mhc_write_back" in compiled
    compiled.clear()
    quantise = impl("quantize_rows", "triton_group")
    module.mhc_boundary_quant(*streams, site, bf16(width), iters=20, quantize_rows=quantise, **options)
    assert ("_quantize" in compiled) == (name != "cuda_quant") == ("mhc_boundary_quant" not in compiled)


@pytest.mark.parametrize(("ranks", "ahead", "threads"), [(8, 3, 512), (16, 2, 256)])
def test_boundary_in_rings(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, ranks: int, ahead: int, threads: int
) -> None:
    from stack.kernels.mhc_boundary import cuda_ring

    monkeypatch.setattr(cuda_ring, "RANKS", ranks)
    monkeypatch.setattr(cuda_ring, "AHEAD", ahead)
    for cached in (cuda_ring._kernel, cuda_ring._exchange):
        cached.cache_clear()
    exact = torch.ones(24, 4 * 256)
    for fn in (exact, exact + 2.0**-12):
        site = SimpleNamespace(fn_MD=fn, base_M=torch.zeros(24), scale_3=torch.zeros(3))
        streams = (bf16(5, 256), bf16(5, 4, 256), torch.zeros(5, 4), torch.zeros(5, 4, 4))
        cuda_ring.mhc_boundary(*streams, site, bf16(256), iters=20, hc_eps=1e-6, norm_eps=1e-5)
    assert compiled == ["mhc_ring_1", "mhc_ring_2"]
    blocks_a_multiprocessor = 512 // threads
    assert cuda_ring._kernel(1).shared_bytes + 1024 <= 233472 // blocks_a_multiprocessor


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_draft_blocks(compiled: list[str], dtype: torch.dtype) -> None:
    """The quarter draft's sizes, and the tiny one's in FP32; pages that lie apart, and the ring's broadcast indices."""
    heads, dim, context = (8, 128, 2048) if dtype == BF16 else (4, 16, 24)
    module, qk = OPS["dflash_block"].module("triton_block"), heads + heads // 4
    rows = torch.zeros(3, 8, heads + heads // 2, dim, dtype=dtype)
    q, k, v = rows.split((heads, heads // 4, heads // 4), dim=2)
    pool = torch.zeros(5, 64 * heads // 4 * dim + 64, dtype=dtype)[:, :-64].unflatten(1, (64, heads // 4, dim))
    place = torch.zeros(3, context, dtype=torch.int64)
    for first in (place, place[:, :1].expand(3, context)):
        module.block_attention(q, k, v, pool, pool, first, place, ints(3, context), ints(3, 8), window=context, scale=1)
    options = {"num_queries": heads, "eps": 1e-5, "theta": 10000.0, "norm": None}
    module.norm_rope(rows.flatten(0, 1)[:, :qk], torch.zeros(2, dim, dtype=dtype), ints(24), **options)
    taps = torch.zeros(3, 8, 2, 2, 256, dtype=dtype)[:, :, 1]
    module.dynamic_conv(torch.zeros(3, 8, 4096, dtype=dtype), torch.zeros(2, 4096, dtype=dtype), taps)
    codebook = torch.zeros(64, 256, dtype=dtype)
    drawn = torch.zeros(3, 7, 16), torch.zeros(3, 7, 16, dtype=torch.int64), torch.zeros(3, 7, 256, dtype=dtype)
    anchor = torch.zeros(3, 8, dtype=torch.int64)[:, 0]
    module.selector_walk(*drawn, codebook, codebook, anchor, torch.zeros(3), torch.zeros(3, 7))
    assert compiled == ["_attend", "_merge", "_attend", "_merge", "_turn", "_convolve", "_walk"]


def test_sampling(compiled: list[str]) -> None:
    reals, ids = torch.zeros(3), torch.zeros(3, dtype=torch.int64)
    module = OPS["sample"].module("cuda_search")
    module.sample(torch.zeros(3, 500), reals, ints(3), reals, reals, module.uniforms(ids, ids, 0))
    assert compiled == ["sample_uniforms", "sample_rows"]
