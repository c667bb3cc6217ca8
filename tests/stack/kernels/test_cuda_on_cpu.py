"""CUDA kernels agree with their references when their threads run one after another on the CPU."""

import ctypes
import math
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stack.kernels import cuda_source, tensor_map
from stack.kernels.cases import Case, Draw
from stack.kernels.catalog import OPS
from stack.kernels.index_select import paged_scores
from stack.kernels.index_select import top_pools as selection
from stack.kernels.index_select.top_pools import top_pools
from stack.kernels.kda_chunk.cuda_prepared import prepare
from stack.kernels.kda_chunk.segments import begin_pass, entering_states
from stack.kernels.kda_decode import streams
from stack.kernels.mhc_boundary import cuda_ring
from stack.kernels.moe import cuda_grouped, routing
from stack.kernels.sample.cases import CASES as SAMPLE_CASES
from tests.stack.kernels import cuda_on_cpu
from tools.gpu.micro import inputs, step_inputs
from tools.gpu.micro.compare import distance, run
from tools.gpu.micro.inputs import Call

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not cuda_on_cpu.can_run(), reason="needs g++ and an x86-64 processor"),
]


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Launches run on the CPU."""
    monkeypatch.setattr(cuda_source.CudaKernel, "launch", cuda_on_cpu.launch)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=16))
    yield
    streams.resident_blocks.cache_clear()


def assert_agrees(op: str, impl: str, call: Call, tolerance: float) -> None:
    """Results and written arguments are within `tolerance` of the reference, relative to their norm."""
    want = run(getattr(OPS[op].module("reference"), op), call, "cpu")
    got = run(getattr(OPS[op].module(impl), op), call, "cpu")
    assert len(got) == len(want)
    errors = [distance(a, b) for a, b in zip(got, want, strict=True)]
    assert max(errors) <= tolerance, errors


@pytest.mark.parametrize(
    ("rows", "width", "first", "exact", "ranks"),
    [(37, 4096, False, True, 8), (20, 4096, True, True, 16), (1, 4096, False, False, 16), (300, 256, False, False, 8)],
)
def test_boundary_in_rings(
    monkeypatch: pytest.MonkeyPatch, rows: int, width: int, first: bool, exact: bool, ranks: int
) -> None:
    """The second call goes on where the first left the ring; 300 rows of one group are more turns than a batch."""
    monkeypatch.setattr(cuda_ring, "RANKS", ranks)
    monkeypatch.setattr(cuda_ring, "AHEAD", 3 if ranks == 8 else 2)
    monkeypatch.setattr(cuda_ring, "_groups", lambda device: 1 if rows == 300 else 2)
    for cached in (cuda_ring._kernel, cuda_ring._exchange):
        cached.cache_clear()
    for seed in range(1 if rows == 300 else 2):
        torch.manual_seed(seed)
        call: Any = inputs.mhc_boundary("cpu", rows, width, first, bf16_fn=exact)
        assert_agrees("mhc_boundary", "cuda_ring", call, 4e-3)


@pytest.mark.parametrize(("rows", "width", "first", "groups"), [(37, 4096, False, 2), (300, 256, True, 1)])
def test_boundary_that_asks_early_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, rows: int, width: int, first: bool, groups: int
) -> None:
    """Twice with each choice: the second call finds the first one's tags in the ring."""
    monkeypatch.setattr(cuda_ring, "_groups", lambda device: groups)
    torch.manual_seed(0)
    call: Any = inputs.mhc_boundary("cpu", rows, width, first, bf16_fn=True)
    results = []
    for early in (0, 1):
        monkeypatch.setattr(cuda_ring, "EARLY", early)
        for cached in (cuda_ring._kernel, cuda_ring._exchange):
            cached.cache_clear()
        results += [run(cuda_ring.mhc_boundary, call, "cpu") for _ in range(2)]
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize(
    ("lens", "padding", "lower_bound"), [((5,), 0, -5.0), ((64, 1, 130), 7, -5.0), ((100,), 0, -0.5)]
)
def test_prepared_chunks(lens: tuple[int, ...], padding: int, lower_bound: float) -> None:
    torch.manual_seed(len(lens))
    call: Any = inputs.kda_chunk("cpu", list(lens), padding, 2)
    call.kwargs["lower_bound"] = lower_bound
    want = run(OPS["kda_chunk"].module("reference").kda_chunk, call, "cpu")
    got = run(chunks_in_turn, call, "cpu")
    errors = [distance(a, b) for a, b in zip(got, want, strict=True)]
    assert max(errors) <= 6e-3, errors


def chunks_in_turn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, f: torch.Tensor, b: torch.Tensor, a_log: torch.Tensor,
    dt_bias: torch.Tensor, state_SHKV: torch.Tensor, slot_R: torch.Tensor, start_R1: torch.Tensor,
    has_state_R: torch.Tensor, *, lower_bound: float, extend_lens: tuple[int, ...],
) -> torch.Tensor:  # fmt: skip
    """`cuda_prepared` with its serial part in plain FP32."""
    cut, o_THD = begin_pass(v, extend_lens)
    slots, states = entering_states(state_SHKV, slot_R, has_state_R, cut)
    p = prepare(q, k, v, f, b, a_log, dt_bias, cut, lower_bound)
    for n, (request, _) in enumerate(cut.chunk_indices.tolist()):
        end = int(cut.chunk_ends[n]) + 1
        begin = int(cut.chunk_ends[n - 1]) + 1 if n else 0
        w, u, qg, kg, scores = (
            x[begin:end].float().transpose(0, 1) for x in (p.w_THD, p.u_THD, p.qg_THD, p.kg_THD, p.scores_THC)
        )
        fresh = u - w @ states[request]
        inside = torch.where(torch.ones(end - begin, end - begin).tril() > 0, scores[:, :, : end - begin], 0.0)
        o_THD[begin:end] = (inside @ fresh + qg @ states[request]).transpose(0, 1).to(o_THD.dtype)
        states[request] = states[request] * torch.exp2(p.ends_NHD[n])[..., None] + kg.transpose(1, 2) @ fresh
    state_SHKV[slots] = states.to(state_SHKV.dtype)
    return o_THD


@pytest.mark.parametrize("impl", ["cuda_fused", "cuda_long"])
@pytest.mark.parametrize(("lens", "padding"), [([1], 0), ([150, 3, 70], 5)])
def test_convolution(impl: str, lens: list[int], padding: int) -> None:
    torch.manual_seed(padding)
    call: Any = inputs.kda_conv("cpu", lens, padding, 2)
    assert_agrees("kda_conv", impl, call, 3e-3)


@pytest.mark.parametrize("impl", ["paged_wgmma", "paged_held"])
@pytest.mark.parametrize(
    ("lens", "prefix", "padding"), [([8, 8], [300, 5], 8), ([1, 1], [900, 70], 1), ([4, 5, 3], [40, 300, 77], 2)]
)
def test_index_selection(impl: str, lens: list[int], prefix: list[int], padding: int) -> None:
    torch.manual_seed(padding)
    call: Any = inputs.index_select("cpu", lens, prefix, padding, 256, True, budget=16)
    assert_agrees("index_select", impl, call, 0.0)


@pytest.mark.parametrize(("page_size", "rows_a_request"), [(256, 8), (64, 5), (256, 4), (16, 1)])
def test_page_scores_are_those_of_the_keys_and_touch_nothing_else(page_size: int, rows_a_request: int) -> None:
    """Pages of one tile, and of fewer pools; what nobody scores stays as it was."""
    torch.manual_seed(page_size)
    lens = [rows_a_request] * 3
    call: Any = inputs.index_select("cpu", lens, [900, 70, 300], 2, page_size, True, budget=16)
    q, w, codes, scale, table, slot, request, position = call.args
    query, weight = selection.prepared_queries(q, w, fp8=True)
    got, want = torch.full((len(q), 240), 7.0), torch.full((len(q), 240), 7.0)
    paged_scores.page_scores(
        query, weight, codes, scale, table, slot, request, position, got, kpool=4, rows_a_request=rows_a_request,
        warpgroup=True,
    )  # fmt: skip
    for row, (owner, last) in enumerate(zip(request.tolist(), position.tolist(), strict=True)):
        pools = torch.arange((last + 1) // 4)
        page, inside = table[slot[owner], pools // codes.shape[1]], pools % codes.shape[1]
        product = (query[row].float() @ codes[page, inside].float().T).relu()
        want[row, : len(pools)] = (weight[row] @ product) * scale[page, inside]
    assert torch.allclose(got, want, rtol=1e-4, atol=1e-5) and bool((got == 7.0).any()) and bool((got != 7.0).any())


@pytest.mark.parametrize("pools", [600, 3000, 9000, 17000])
@pytest.mark.parametrize("kind", ["normal", "ties", "constant", "nan", "wide"])
@pytest.mark.parametrize("held", [True, False])
def test_top_pools(pools: int, kind: str, held: bool) -> None:
    """17,000 pools fit neither registers nor shared memory."""
    torch.manual_seed(pools)
    score = torch.randn(1, -(-pools // 4) * 4)
    if kind == "ties":
        score = (score * 2).round()
    elif kind == "constant":
        score.zero_()
    elif kind == "nan":
        score[:, ::3] = float("nan")
    elif kind == "wide":
        score = score.sign() * torch.exp2(score * 40)
    out = torch.full((1, 2112), 77, dtype=torch.int32)
    table = torch.arange(1, pools // 64 + 2, dtype=torch.int32).repeat(2, 1)
    place = (table, torch.ones(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32))
    position = torch.tensor([pools * 4 + 1], dtype=torch.int32)
    top_pools(score, *place, position, out, kpool=4, budget=512, page_size=256, held=held)
    order = torch.sort(score[0, :pools].nan_to_num(nan=float("-inf")), descending=True, stable=True).indices
    kept = order[:512].sort().values
    tokens = (kept[:, None] * 4 + torch.arange(4)).flatten() + 256
    tail = torch.arange(2) + pools * 4 + 256
    want = torch.cat([tokens, tail, torch.full((2112 - 2050,), -1)]).int()
    assert torch.equal(out[0], want)


@pytest.mark.parametrize("case", SAMPLE_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_sampling(case: Case, seed: int) -> None:
    function = case.function or "sample"
    call = case.build(Draw("cpu", torch.float32, seed))
    got, want = (getattr(OPS["sample"].module(impl), function)(*call.args) for impl in ("cuda_search", "reference"))
    assert torch.equal(got, want) if case.is_exact else torch.allclose(got, want, rtol=1e-6, atol=1e-9)


def test_uniform_numbers() -> None:
    seed = torch.tensor([0, 1, 2**40 + 3, -5])
    position = torch.tensor([0, 7, 65536, 2**33])
    got, want = (OPS["sample"].module(impl).uniforms(seed, position, 3) for impl in ("cuda_search", "reference"))
    assert torch.equal(got, want)


@pytest.mark.parametrize("impl", ["cuda_fused", "cuda_unfused"])
def test_boundary_in_slabs(impl: str) -> None:
    torch.manual_seed(5)
    call: Any = inputs.mhc_boundary("cpu", 40, 512, bf16_fn=False)
    assert_agrees("mhc_boundary", impl, call, 4e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("impl", ["cuda_step", "cuda_step_fast"])
def test_recurrent_step(impl: str, dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    assert_agrees("kda_decode", impl, inputs.kda_decode("cpu", 3, 2, dtype), 4e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "impl", ["cuda_chain", "cuda_chunk", "cuda_chunk_fast", "cuda_stream", "cuda_stream_chunk", "cuda_stream_roles"]
)
@pytest.mark.parametrize(("width", "snapshots"), [(2, False), (8, False), (3, True)])
def test_verify(impl: str, dtype: torch.dtype, width: int, snapshots: bool) -> None:
    torch.manual_seed(7)
    assert_agrees("kda_verify", impl, inputs.kda_verify("cpu", 3, width, 2, dtype, snapshots), 6e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("impl", ["cuda_fold", "cuda_chunk", "cuda_fold_fast", "cuda_stream", "cuda_stream_chunk"])
@pytest.mark.parametrize("snapshots", [False, True])
def test_commit(impl: str, dtype: torch.dtype, snapshots: bool) -> None:
    torch.manual_seed(8)
    call = inputs.kda_commit("cpu", 4, 8, 2, 2, dtype, snapshots=snapshots)
    assert_agrees("kda_commit", impl, call, 0 if snapshots else 2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("op", "waits", "streams_by", "tolerance"),
    [
        ("kda_verify", "cuda_chain", "cuda_stream", 0.0),
        ("kda_verify", "cuda_chunk", "cuda_stream_chunk", 1e-3),
        ("kda_verify", "cuda_chunk", "cuda_stream_roles", 1e-3),
        ("kda_commit", "cuda_fold", "cuda_stream", 0.0),
        ("kda_commit", "cuda_fold", "cuda_stream_chunk", 1e-3),
    ],
)
def test_states_that_stream_give_what_those_that_wait_give(
    monkeypatch: pytest.MonkeyPatch, op: str, waits: str, streams_by: str, tolerance: float, dtype: torch.dtype
) -> None:
    """The next state arrives under the one that is computed. Those that step give the same bits."""
    call = several_turns(monkeypatch, op, dtype)
    got, want = (run(getattr(OPS[op].module(impl), op), call, "cpu") for impl in (streams_by, waits))
    assert max(distance(a, b) for a, b in zip(got, want, strict=True)) <= tolerance


def several_turns(monkeypatch: pytest.MonkeyPatch, op: str, dtype: torch.dtype) -> Any:
    """A call on one multiprocessor, where every block has several turns; of a commit with every count of old inputs."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=1))
    streams.resident_blocks.cache_clear()
    torch.manual_seed(10)
    if op == "kda_verify":
        return inputs.kda_verify("cpu", 5, 8, 2, dtype)
    call: Any = inputs.kda_commit("cpu", 6, 8, 2, 2, dtype)
    call.args[5].copy_(torch.tensor([1, 2, 3, 8, 0, 5]))
    return call


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(
    ("impl", "dtype", "tolerance"),
    [
        ("cuda_gather", torch.bfloat16, 4e-3),
        ("cuda_paired", torch.bfloat16, 4e-3),
        ("cuda_gather", torch.float8_e4m3fn, 5e-2),
    ],
)
def test_sparse_attention(impl: str, dtype: torch.dtype, tolerance: float, splits: int) -> None:
    torch.manual_seed(9)
    call: Any = inputs.sparse_mla("cpu", 3, 10, 192, 400, dtype, 64)
    want = run(OPS["sparse_mla"].module("reference").sparse_mla, call, "cpu")[0]
    parts: list[tuple[torch.Tensor, torch.Tensor]] = []
    merge: Any = SimpleNamespace(merge_partials=lambda partial, lse, out: parts.append((partial, lse)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "stack.kernels.sparse_mla.triton_merge", merge)
        got = OPS["sparse_mla"].module(impl).sparse_mla(*call.args, **call.kwargs, num_splits=splits)
    for partial, lse in parts:
        weight = torch.softmax(lse * math.log(2.0), 0).nan_to_num()[..., None]
        got = (weight * partial.nan_to_num()).sum(0)
    assert distance(got, want) <= tolerance


@pytest.mark.parametrize(("rows", "width", "first"), [(37, 256, False), (1, 4096, False), (9, 4096, True)])
def test_boundary_gives_the_codes_of_its_result(rows: int, width: int, first: bool) -> None:
    torch.manual_seed(rows)
    quantise = OPS["quantize_rows"].module("reference").quantize_rows
    call: Any = step_inputs.mhc_boundary_quant("cpu", rows, width, first)
    call.kwargs["quantize_rows"] = quantise
    module = OPS["mhc_boundary"].module
    *plain, of_chain = run(module("cuda_fused").mhc_boundary_quant, call, "cpu")
    *fused, of_kernel = run(module("cuda_quant").mhc_boundary_quant, call, "cpu")
    assert all(torch.equal(a.float(), b.float()) for a, b in zip([*plain, of_chain], [*fused, of_kernel], strict=True))


@pytest.mark.parametrize("tile", [16, 32, 64])
@pytest.mark.parametrize("shared", [0, 128, 256])
@pytest.mark.parametrize(("tokens", "choices", "experts", "width"), [(21, 2, 6, 512), (70, 1, 1, 256)])
def test_experts_whose_weights_stream(
    monkeypatch: pytest.MonkeyPatch, tile: int, shared: int, tokens: int, choices: int, experts: int, width: int
) -> None:
    """Blocks have several items each, so that the ring runs on from one to the next; 70 rows of one expert are two
    tiles of the largest."""
    matrix = lambda *words: (ctypes.c_uint64 * tensor_map.WORDS)(*words)  # noqa: E731
    monkeypatch.setattr(tensor_map, "byte_matrix", matrix)
    monkeypatch.setattr(cuda_grouped, "TILES", ((1 << 30, tile),))
    monkeypatch.setattr(cuda_grouped, "_multiprocessors", lambda device: 3)
    monkeypatch.setattr(cuda_grouped, "_quantized", OPS["quantize_rows"].module("reference").quantize_rows)
    cuda_grouped._map.cache_clear()
    torch.manual_seed(tokens)
    activation = OPS["swiglu_quant"].module("unfused").swiglu_quant
    if shared:
        call: Any = step_inputs.moe_with_shared("cpu", tokens, experts, choices, width, 256, shared, False)
        call.kwargs["swiglu_quant"] = activation
    else:
        call = inputs.moe("cpu", tokens, experts, choices, width, 256, activation)
    assert_agrees("moe", "cuda_grouped", call, 1e-2)
    cuda_grouped._map.cache_clear()


@pytest.mark.parametrize(("tokens", "choices", "experts", "align"), [(40, 2, 8, 16), (9, 8, 72, 64)])
def test_a_term_of_the_sum_is_what_a_separate_addition_gives(
    tokens: int, choices: int, experts: int, align: int
) -> None:
    torch.manual_seed(tokens)
    ids = torch.stack([torch.randperm(experts)[:choices] for _ in range(tokens)]).int()
    ids[-1] = -1
    places = routing.sort_by_expert(ids, experts, align)
    taken = places.position_TK[:-1].flatten().long()
    assert torch.equal(places.source_M[taken], torch.arange(len(taken), dtype=torch.int32))
    assert torch.equal(places.layout_M[taken], ids[:-1].flatten())
    rows, added = torch.randn(len(places.layout_M), 512).bfloat16(), torch.randn(tokens, 600).bfloat16()[:, :512]
    weights = torch.rand(tokens, choices)
    want = routing.combine(rows, places, weights) + added
    assert torch.equal(routing.combine(rows, places, weights, added), want)
    products = rows.float()[places.position_TK.long()] * torch.where(ids >= 0, weights, 0.0)[..., None]
    assert torch.allclose((want - added).float(), products.sum(1), atol=0.06)
