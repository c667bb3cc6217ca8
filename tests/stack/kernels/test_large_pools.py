"""Offsets into pools are 64-bit: results do not change when pages and slots lie more than 2^32 bytes into their pool.

Each op runs on a small pool and on the same contents far inside a large one; results and what was written are compared
bit for bit.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from stack.kernels.catalog import OPS
from tools.gpu.micro import inputs
from tools.gpu.micro.compare import move, tensors
from tools.gpu.micro.inputs import BF16, F32, FP8, Call

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device with 40 GB"),
]

BYTES = 2**32 + 2**24
SPAN = 2**20
"""Least bytes from one page or slot to the next in the large pool."""


def far(pool: Tensor, first: int) -> Tensor:
    """`pool` with entry i > 0 moved to `first` + i; entry 0 stays, and what lies between is never to be read."""
    stride = first_stride(pool)
    whole = torch.empty((first + pool.shape[0]) * stride, dtype=torch.uint8, device=pool.device).view(pool.dtype)
    large = whole.as_strided(
        (first + pool.shape[0], *pool.shape[1:]), (stride // pool.element_size(), *pool.stride()[1:])
    )
    large[0].copy_(pool[0])
    large[first + 1 :].copy_(pool[1:])
    return large


def first_stride(pool: Tensor) -> int:
    """Bytes from one entry to the next in the large pool."""
    used = (1 + sum((n - 1) * s for n, s in zip(pool.shape[1:], pool.stride()[1:], strict=True))) * pool.element_size()
    return max(SPAN, -(-used // 4096) * 4096)


def moved(numbers: Tensor, first: int) -> Tensor:
    """Page or slot numbers in the large pool; 0 and below stay."""
    return torch.where(numbers > 0, numbers + first, numbers).to(numbers.dtype)


def far_call(call: Call, pools: tuple[int, ...], numbers: tuple[int, ...], places: tuple[int, ...], page: int) -> Call:
    """The call with its `pools` far; `numbers` are arguments that count pages or slots, `places` count tokens."""
    args = move(list(call.args), call.args[0].device.type)  # so that neither run sees what the other writes
    first = -(-BYTES // min(first_stride(args[i]) for i in pools if args[i] is not None))
    for i in pools:
        args[i] = None if args[i] is None else far(args[i], first)
    for i in numbers:
        args[i] = moved(args[i], first)
    for i in places:
        args[i] = moved(args[i], first * page)
    return Call(args, call.kwargs, call.outputs, call.function)


def results(op: str, impl: str, call: Call) -> list[Tensor]:
    """What the call returns."""
    with torch.inference_mode():
        return tensors(getattr(OPS[op].module(impl), call.function or op)(*call.args, **call.kwargs))


SPARSE_MLA = ("cuda_gather", "triton_partial", "tilelang_partial", "tilelang_prefill", "tilelang_prefill_q8")
CASES: dict[str, tuple[str, tuple[str, ...], Callable[[], Call], tuple[Any, ...]]] = {
    "sparse_mla_fp8": (
        "sparse_mla", SPARSE_MLA,
        lambda: inputs.sparse_mla("cuda", 5, 16, 2112, 4000, FP8, 64), ((1,), (), (2,), 64),
    ),
    "sparse_mla_bf16": (
        "sparse_mla", SPARSE_MLA[:-1],
        lambda: inputs.sparse_mla("cuda", 5, 16, 2112, 4000, BF16, 64), ((1,), (), (2,), 64),
    ),
    "sparse_mla_64_heads": (
        "sparse_mla", ("flash_mla", "tilelang_prefill"),
        lambda: inputs.sparse_mla("cuda", 5, 64, 2112, 4000, BF16, 64), ((1,), (), (2,), 64),
    ),
    "latent_write": (
        "latent_write", ("triton_scatter",), lambda: inputs.latent_write("cuda", 70, 64, FP8), ((2,), (), (3,), 64),
    ),
    "index_write": (
        "index_write", ("cuda_pool",), lambda: inputs.index_write("cuda", [9, 30, 1], [0, 5, 258], 3, 256, True),
        ((6, 7), (8,), (13,), 256),
    ),
    "index_select": (
        "index_select", ("paged", "paged_wgmma", "paged_held"),
        lambda: inputs.index_select("cuda", [8, 8], [300, 600], 2, 256, True, budget=16), ((2, 3), (4,), (), 256),
    ),
    "kda_decode": (
        "kda_decode", ("cuda_step",), lambda: inputs.kda_decode("cuda", 5, 4, F32), ((6, 7), (8,), (), 1),
    ),
    "kda_verify": (
        "kda_verify", ("cuda_chunk", "cuda_chain", "cuda_stream", "cuda_stream_roles"),
        lambda: inputs.kda_verify("cuda", 3, 8, 4, BF16, False),
        ((6, 7), (8,), (), 1),
    ),
    "kda_commit": (
        "kda_commit", ("cuda_fold", "cuda_chunk", "cuda_stream", "cuda_stream_chunk"),
        lambda: inputs.kda_commit("cuda", 7, 8, 4, 2, F32),
        ((0, 1), (3,), (), 1),
    ),
    "draft_pages": (
        "dflash_block", ("triton_block",), lambda: inputs.draft_attention("cuda", [1, 700, 300], 512, 64),
        ((3, 4), (5,), (), 1),
    ),
    "draft_rings": (
        "dflash_block", ("triton_block",), lambda: inputs.draft_attention("cuda", [1, 700, 300], 512, 0),
        ((3, 4), (5,), (), 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("case", "impl"), [(name, impl) for name, case in CASES.items() for impl in case[1]])
def test_far_pools_change_nothing(case: str, impl: str) -> None:
    op, _, build, where = CASES[case]
    if reason := OPS[op].missing(impl, "cuda"):
        pytest.skip(reason)
    torch.manual_seed(0)
    near = build()
    distant = far_call(near, *where)
    got, want = results(op, impl, distant), results(op, impl, near)
    if op == "index_select":  # token numbers: the large pool's lie further on
        got = [torch.where(x >= 0, x - (distant.args[4].max() - near.args[4].max()) * where[3], x) for x in got]
    assert len(got) == len(want) and all(torch.equal(a, b.to(a.dtype)) for a, b in zip(got, want, strict=True))
    for i in where[0]:
        large, small = distant.args[i], near.args[i]
        assert torch.equal(bits(large[large.shape[0] - small.shape[0] + 1 :]), bits(small[1:]))


def bits(pool: Tensor) -> Tensor:
    """Contents as integers, so that NaNs compare."""
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return pool.contiguous().view(sizes[pool.element_size()])
