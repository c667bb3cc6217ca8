"""Inputs of every op at a stated size, on a stated device, with what bugs hide behind: strided views, padding, uneven
scales.

A builder returns `Call(args, kwargs, outputs)`; `outputs` picks the argument tensors that the op writes. All draws
come from the default generator, so a seed and a device fix them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from stack.core.memory import ReplayRing
from stack.kernels.catalog import OPS
from stack.kernels.quantized import Fp8Weight, QuantizedRows, empty_scales

BF16, FP8, F32, I32 = torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int32
SPARSE_MLA = (
    "cuda_gather", "cuda_paired", "triton_partial", "tilelang_partial", "tilelang_prefill", "tilelang_prefill_q8",
)  # fmt: skip
INDEX_SELECT = ("deep_gemm", "deep_gemm_held", "paged", "paged_wgmma", "paged_held")
MOE = ("by_rows", "deep_gemm_contiguous", "triton_grouped", "deep_gemm_masked")
MOE_BESIDE = ("beside_by_rows", "triton_beside")
KDA_VERIFY = (
    "cuda_chunk", "cuda_chunk_fast", "cuda_chain", "cuda_stream", "cuda_stream_chunk", "cuda_stream_roles",
)  # fmt: skip
KDA_COMMIT = ("cuda_chunk", "cuda_fold", "cuda_fold_fast", "cuda_stream", "cuda_stream_chunk")
KDA_CHUNK = ("by_requests", "cuda_prepared", "split_chunk", "flash_kda", "fla_chunk")


@dataclass(slots=True)
class Call:
    """One call of an op: its arguments, those of them that it writes, and the op's function where it has several."""

    args: list[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    outputs: Callable[[list[Any]], list[Tensor]] = lambda args: []
    function: str = ""
    written: tuple[str, ...] = ()
    """Keyword arguments that the op writes, too."""
    parameters: tuple[int, ...] = ()
    """Arguments that a model's weights are, of which an implementation may keep a form of its own."""


def strided(rows: int, width: int, device: str, extra: int = 64) -> Tensor:
    """BF16 rows cut out of wider ones."""
    return torch.randn(rows, width + extra, device=device).to(BF16)[:, :width]


def quantized(rows: int, width: int, device: str) -> QuantizedRows:
    """Random codes with power-of-two scales that differ from group to group."""
    scales = empty_scales(rows, width // 128, device)
    scales.copy_(torch.exp2(torch.randint(-6, 3, (rows, width // 128), device=device).float()))
    return QuantizedRows(torch.randn(rows, width, device=device).to(FP8), scales)


def fp8_weight(*shape: int, device: str) -> Fp8Weight:
    """Random codes [.., N, K] with power-of-two scales that differ from block to block."""
    codes = torch.empty(shape, device=device, dtype=FP8)
    for part in codes.view(-1, *shape[-2:]):
        part.copy_(torch.randn(shape[-2:], device=device))
    blocks = (*shape[:-2], shape[-2] // 128, shape[-1] // 128)
    return Fp8Weight(codes, torch.exp2(torch.randint(-9, -4, blocks, device=device).float()))


def poisoned_rows(rows: int, *tensors: Tensor) -> None:
    """NaN in the last rows: nothing may come of what padding holds."""
    for tensor in tensors:
        tensor[tensor.shape[0] - rows :] = float("nan")


def pool_rows(pages: int, page: int, width: int, dtype: torch.dtype, device: str) -> Tensor:
    """Pages of rows inside wider pages, page 0 all zeros."""
    pool = torch.randn(pages, page * width + 512, device=device).to(dtype)
    pool[0] = torch.zeros_like(pool[0])
    return pool[:, 256 : 256 + page * width].unflatten(1, (page, width))


@dataclass(slots=True)
class Packing:
    """Rows of requests, packed and padded: the per-row and per-request tables."""

    slot: Tensor
    request: Tensor
    position: Tensor
    start: Tensor
    write: Tensor
    table: Tensor
    lens: tuple[int, ...]


def packing(lens: list[int], prefix: list[int], padding: int, page: int, slots: int, device: str) -> Packing:
    """Requests of `lens` new tokens behind `prefix` cached ones; slots count down from the last; padded rows carry
    slot 0."""
    requests = len(lens) + (1 if padding else 0)
    longest = max(p + n for p, n in zip(prefix, lens, strict=True))
    pages = -(-longest // page)
    table = torch.zeros(slots, pages, dtype=I32)
    order = torch.randperm(len(lens) * pages) + 1
    slot = [slots - 1 - i for i in range(len(lens))] + [0] * (requests - len(lens))
    request, position, write, start, used = [], [], [], [0], 0
    for i, (length, done) in enumerate(zip(lens, prefix, strict=True)):
        mine = order[used : used + pages].int()
        used += pages
        table[slot[i]] = mine
        for t in range(done, done + length):
            request.append(i)
            position.append(t)
            write.append(int(mine[t // page]) * page + t % page)
        start.append(len(request))
    start += [start[-1]] * (requests - len(lens))
    request += [requests - 1] * padding
    position += [0] * padding
    write += [0] * padding
    to = {"device": device}
    return Packing(
        torch.tensor(slot, dtype=I32, **to), torch.tensor(request, dtype=I32, **to), torch.tensor(position, dtype=I32,
        **to),
        torch.tensor(start, dtype=I32, **to), torch.tensor(write, dtype=torch.int64, **to), table.to(device),
        tuple(lens),
    )  # fmt: skip


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


def latent_write(device: str, rows: int, page: int, dtype: torch.dtype) -> Call:
    """Rows for scattered places of a strided pool; the last is padding."""
    pool = pool_rows(rows // page + 3, page, 512, dtype, device)
    write = torch.randperm((rows // page + 2) * page, device=device)[:rows] + page
    write[-1] = 0
    kv = strided(rows, 512, device) * 3
    weight = (torch.rand(512, device=device) + 0.5).to(BF16)
    return Call([kv, weight, pool, write], {"eps": 1e-5}, lambda args: [args[2]])


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


def kda_parameters(device: str, heads: int) -> list[Tensor]:
    """Convolution weight, A_log and dt_bias."""
    channels = 3 * heads * 128
    weight = torch.randn(channels, 4, device=device) * 0.5
    return [weight, torch.randn(heads, device=device) * 0.3, torch.randn(heads, 128, device=device) - 2]


def kda_memory(device: str, slots: int, heads: int, layers: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """States and windows of all layers, slot 0 all zeros."""
    state = (torch.randn(slots, heads, layers, 128, 128, device=device) * 0.2).to(dtype)
    conv = torch.randn(slots, heads, layers, 3, 128, 3, device=device).to(BF16)
    state[0], conv[0] = 0, 0
    return state, conv


def kda_rows(device: str, rows: int, heads: int) -> list[Tensor]:
    """x [T, X], f [T, H, D] and b [T, H] as the projections leave them: views of one wide row."""
    channels = 3 * heads * 128
    wide = torch.randn(rows, channels + heads + 256, device=device).to(BF16)
    f = torch.randn(2, rows, heads, 128, device=device).to(BF16)[0]
    return [wide[:, :channels], f, wide[:, channels : channels + heads]]


def kda_conv(device: str, lens: list[int], padding: int, heads: int) -> Call:
    """Packed requests, every second one resuming."""
    pack = packing(lens, [0] * len(lens), padding, 64, len(lens) + 2, device)
    _, conv = kda_memory(device, len(lens) + 2, heads, 1, F32)
    resumes = torch.tensor([i % 2 == 0 for i in range(pack.slot.shape[0])], device=device)
    x = kda_rows(device, sum(lens) + padding, heads)[0]
    poisoned_rows(padding, x)
    args = [
        x,
        kda_parameters(device, heads)[0],
        conv[:, :, 0],
        pack.slot,
        pack.start,
        pack.request,
        pack.position,
        resumes,
    ]
    return Call(args, {}, lambda args: [args[2]])


def kda_chunk(device: str, lens: list[int], padding: int, heads: int, dtype: torch.dtype = F32) -> Call:
    """Packed requests, every second one resuming."""
    rows = sum(lens) + padding
    pack = packing(lens, [0] * len(lens), padding, 64, len(lens) + 2, device)
    state, _ = kda_memory(device, len(lens) + 2, heads, 1, dtype)
    q, k, v = (torch.randn(rows, heads, 128, device=device) for _ in range(3))
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    _, f, b = kda_rows(device, rows, heads)
    _, a_log, dt_bias = kda_parameters(device, heads)
    resumes = torch.tensor([i % 2 == 0 for i in range(pack.slot.shape[0])], device=device)
    poisoned_rows(padding, q, k, v, f, b)
    args = [
        (q * 128**-0.5).to(BF16),
        k.to(BF16),
        v.to(BF16),
        f,
        b,
        a_log,
        dt_bias,
        state[:, :, 0],
        pack.slot,
        pack.start,
        resumes,
    ]
    return Call(args, {"lower_bound": -5.0, "extend_lens": pack.lens}, lambda args: [args[7]])


def kda_decode(device: str, requests: int, heads: int, dtype: torch.dtype) -> Call:
    """One row a request; the last is padding."""
    state, conv = kda_memory(device, requests + 1, heads, 2, dtype)
    slot = torch.randperm(requests, device=device).to(I32) + 1
    slot[-1] = 0
    weight, a_log, dt_bias = kda_parameters(device, heads)
    rows = kda_rows(device, requests, heads)
    poisoned_rows(1, *rows)
    args = [*rows, weight, a_log, dt_bias, state[:, :, 1], conv[:, :, 1], slot]
    return Call(args, {"lower_bound": -5.0}, lambda args: [args[6], args[7]])


def empty_ring(device: str, layers: int, entries: int, width: int, heads: int) -> ReplayRing:
    """A replay ring of zeros over all layers."""
    shape = (layers, entries, width, heads, 128)
    return ReplayRing(
        k_NWHD=torch.zeros(shape, device=device, dtype=BF16), v_NWHD=torch.zeros(shape, device=device, dtype=BF16),
        g_NWHD=torch.zeros(shape, device=device), beta_NWH=torch.zeros(shape[:-1], device=device),
        x_NWX=torch.zeros((*shape[:3], 3 * heads * 128), device=device, dtype=BF16),
    )  # fmt: skip


def layer_of(ring: ReplayRing, layer: int) -> ReplayRing:
    """One layer's view."""
    return ReplayRing(**{name: getattr(ring, name)[layer] for name in ReplayRing.__slots__})


def ring_tensors(ring: ReplayRing) -> list[Tensor]:
    """The fields, in order."""
    return [getattr(ring, name) for name in ReplayRing.__slots__]


def kda_verify(device: str, requests: int, width: int, heads: int, dtype: torch.dtype, snapshots: bool = False) -> Call:
    """`width` rows a request; the last request is padding."""
    state, conv = kda_memory(device, requests + 1, heads, 2, dtype)
    slot = torch.randperm(requests, device=device).to(I32) + 1
    slot[-1] = 0
    entry = torch.where(slot > 0, torch.randperm(requests, device=device).to(I32) + 1, 0).to(I32)
    weight, a_log, dt_bias = kda_parameters(device, heads)
    ring = layer_of(empty_ring(device, 2, requests + 1, width, heads), 1)
    kept = torch.zeros(requests + 1, width, heads, 128, 128, device=device, dtype=dtype) if snapshots else None
    rows = kda_rows(device, requests * width, heads)
    poisoned_rows(width, *rows)
    args = [
        *rows,
        weight,
        a_log,
        dt_bias,
        state[:, :, 1],
        conv[:, :, 1],
        slot,
        entry,
        ring,
    ]
    options = {"width": width, "lower_bound": -5.0, "snapshots_NWHKV": kept}
    written = ("snapshots_NWHKV",) if snapshots else ()
    return Call(args, options, lambda args: [args[6], args[7], *ring_tensors(args[10])], written=written)


def kda_commit(
    device: str,
    requests: int,
    width: int,
    heads: int,
    layers: int,
    dtype: torch.dtype,
    accepted: int | None = None,
    snapshots: bool = False,
) -> Call:
    """A filled ring and how many rows of it each request keeps; `snapshots`: states after each row lie there."""
    state, conv = kda_memory(device, requests + 1, heads, layers, dtype)
    slot = torch.randperm(requests, device=device).to(I32) + 1
    slot[-1] = 0
    entry = torch.where(slot > 0, torch.randperm(requests, device=device).to(I32) + 1, 0).to(I32)
    ring = empty_ring(device, layers, requests + 1, width, heads)
    for tensor in (ring.k_NWHD, ring.v_NWHD, ring.x_NWX):
        tensor.copy_(torch.randn(tensor.shape, device=device))
    ring.g_NWHD.copy_(-2 * torch.rand(ring.g_NWHD.shape, device=device))
    ring.beta_NWH.copy_(torch.rand(ring.beta_NWH.shape, device=device))
    count = torch.randint(0, width + 1, (requests,), device=device, dtype=I32)
    if accepted is not None:
        count.fill_(accepted)
    shape = (layers, requests + 1, width, heads, 128, 128)
    kept = {"snapshots_LNWHKV": torch.randn(shape, device=device).to(dtype)} if snapshots else {}
    return Call([state, conv, ring, slot, entry, count], kept, lambda args: [args[0], args[1]])


def index_write(
    device: str, lens: list[int], prefix: list[int], padding: int, page: int, fp8: bool, ring: int = 12
) -> Call:
    """Packed requests behind cached tokens; index keys strided over their pages."""
    pack = packing(lens, prefix, padding, page, len(lens) + 2, device)
    rows, pages = sum(lens) + padding, int(pack.table.max()) + 1
    codes = torch.zeros(pages, page // 4 + 2, 128, device=device).to(FP8 if fp8 else BF16)[:, : page // 4]
    scales = torch.zeros(pages, page // 4, device=device) if fp8 else None
    tail = torch.randn(len(lens) + 2, ring, 2, 128, device=device).to(BF16)
    wide = torch.randn(rows, 288, device=device).to(BF16)
    poisoned_rows(padding, wide)
    norm = [(torch.rand(128, device=device) + 0.5).to(BF16), (torch.randn(128, device=device) * 0.1).to(BF16)]
    ape = (torch.randn(4, 128, device=device) * 0.5).to(BF16)
    args = [
        wide[:, :128],
        wide[:, 128:256],
        *norm,
        ape,
        tail,
        codes,
        scales,
        pack.table,
        pack.slot,
        pack.request,
        pack.position,
    ]
    return Call([*args, pack.start, pack.write], {}, lambda args: [t for t in args[5:8] if t is not None])


def index_select(
    device: str,
    lens: list[int],
    prefix: list[int],
    padding: int,
    page: int,
    fp8: bool,
    budget: int = 512,
    workspace: int = 1 << 29,
) -> Call:
    """Packed requests behind cached tokens; keys and scales share their pages."""
    pack = packing(lens, prefix, padding, page, len(lens) + 2, device)
    rows, pages = sum(lens) + padding, int(pack.table.max()) + 1
    keys = torch.randn(pages, page // 4 * 132, device=device)
    q = torch.randn(rows, 32, 128, device=device).to(BF16)
    w = torch.randn(rows, 32, device=device) * 32**-0.5
    poisoned_rows(padding, q, w)
    if fp8:
        raw = torch.empty(pages, page // 4 * 132, dtype=torch.uint8, device=device)
        codes = raw[:, : page // 4 * 128].view(FP8).unflatten(1, (page // 4, 128))
        codes.copy_(keys[:, : page // 4 * 128].unflatten(1, (page // 4, 128)))
        scales = raw[:, page // 4 * 128 :].view(F32)
        scales.copy_(torch.exp2(torch.randint(-3, 3, scales.shape, device=device).float()))
    else:
        codes, scales = keys[:, : page // 4 * 128].to(BF16).unflatten(1, (page // 4, 128)), None
    longest = max(p + n for p, n in zip(prefix, lens, strict=True))
    options = {"kpool": 4, "budget": budget, "max_context": longest, "workspace_bytes": workspace}
    return Call([q, w, codes, scales, pack.table, pack.slot, pack.request, pack.position], options)


def sparse_mla(
    device: str,
    rows: int,
    heads: int,
    width: int,
    context: int,
    dtype: torch.dtype,
    page: int = 256,
    valid: int | None = None,
    contexts: int = 1,
) -> Call:
    """Queries and random sets of rows; small cases have empty, short and holed sets. With more than one of the
    `contexts`, neighbouring rows share one."""
    pool = pool_rows(contexts * -(-context // page) + 1, page, 512, dtype, device)
    index = torch.randint(page, context + page, (rows, width), device=device, dtype=I32)
    index += (torch.arange(rows, device=device) * contexts // rows * context).int()[:, None]
    if valid is not None:
        index[:, valid:] = -1
    if rows > 2 and rows < 100:
        index[0] = -1
        index[1, width // 3 :] = -1
        index[2, ::3] = -1
    q = torch.randn(rows, heads, 512, device=device).to(BF16)
    return Call([q, pool, index], {"scale": 1 / 16})


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


DRAFT_HEADS, DRAFT_KV_HEADS, DRAFT_DIM, DRAFT_WIDTH = 8, 2, 128, 8
"""Of the quarter draft; its rows are those of a block."""


def draft_attention(device: str, lengths: list[int], window: int, page: int) -> Call:
    """Blocks behind `lengths` committed tokens in pages of `page` rows, or in rings of the window for 0. Rows of the
    pools that none of a request's rows sees are NaN."""
    count, each = len(lengths), -(-max(lengths) // page) if page else 1
    size = (page or window) * DRAFT_KV_HEADS * DRAFT_DIM
    pools = [torch.full((count * each + 1, size + 256), float("nan"), device=device, dtype=BF16) for _ in range(2)]
    k, v = (pool[:, 256:].unflatten(1, (page or window, DRAFT_KV_HEADS, DRAFT_DIM)) for pool in pools)
    order = (torch.randperm(count * each, device=device) + 1).view(count, each)
    length, back = torch.tensor(lengths, device=device), torch.arange(window, device=device).expand(count, window)
    if page:
        position = length[:, None] - window + back
        first, second = order.gather(1, position.clamp(min=0) // page), position.clamp(min=0) % page
    else:
        position = length[:, None] - 1 - (length[:, None] - 1 - back) % window
        first, second = order.expand(count, window), back
    seen = (position >= 0) & (position > length[:, None] - window)
    for pool in (k, v):
        values = torch.randn(int(seen.sum()), DRAFT_KV_HEADS, DRAFT_DIM, device=device)
        pool[first[seen], second[seen]] = values.to(BF16)
    rows = torch.randn(count, DRAFT_WIDTH, DRAFT_HEADS + 2 * DRAFT_KV_HEADS, DRAFT_DIM, device=device).to(BF16)
    own = rows.split((DRAFT_HEADS, DRAFT_KV_HEADS, DRAFT_KV_HEADS), dim=2)
    places = [torch.where(position >= 0, position, -1).int(), (length[:, None] + back[:, :DRAFT_WIDTH]).int()]
    options = {"window": window, "scale": DRAFT_DIM**-0.5}
    return Call([*own, k, v, first, second, *places], options, function="block_attention")


def draft_rotation(device: str, rows: int) -> Call:
    """Query and key heads cut out of wider rows. `norm` is what an implementation that has none of its own is given."""
    heads = DRAFT_HEADS + DRAFT_KV_HEADS
    x = torch.randn(rows, heads + DRAFT_KV_HEADS, DRAFT_DIM, device=device).to(BF16)[:, :heads]
    gain = (torch.rand(2, DRAFT_DIM, device=device) + 0.5).to(BF16)
    norm = OPS["rms_norm"].module("torch_rows" if device == "cpu" else "triton_rows").rms_norm
    options = {"num_queries": DRAFT_HEADS, "eps": 1e-5, "theta": 10000.0, "norm": norm}
    return Call([x, gain, torch.arange(rows, device=device, dtype=I32)], options, function="norm_rope")


def draft_convolution(device: str, requests: int, channels: int) -> Call:
    """The taps of a convolution's second side."""
    y = torch.randn(requests, DRAFT_WIDTH, channels, device=device).to(BF16)
    dynamic = torch.randn(requests, DRAFT_WIDTH, 2, 2, channels // 16, device=device).to(BF16)[:, :, 1]
    return Call([y, torch.randn(2, channels, device=device).to(BF16), dynamic], function="dynamic_conv")


def draft_walk(device: str, requests: int, vocab: int) -> Call:
    """Every second request greedy; pending tokens are a column of the block."""
    drafts, top, rank = DRAFT_WIDTH - 1, 16, 256
    unary = torch.randn(requests, drafts, top, device=device).sort(dim=-1, descending=True).values
    ids = torch.rand(requests, drafts, vocab, device=device).topk(top, dim=-1).indices
    z = torch.randn(requests, drafts, rank, device=device).to(BF16)
    codebooks = [(torch.randn(vocab, rank, device=device) * 0.3).to(BF16) for _ in range(2)]
    anchor = torch.randint(vocab, (requests, DRAFT_WIDTH), device=device)[:, 0]
    heat = torch.arange(requests, device=device) % 2 * 0.7
    uniform = torch.rand(requests, drafts, device=device)
    return Call([unary, ids, z, *codebooks, anchor, heat, uniform], function="selector_walk")
