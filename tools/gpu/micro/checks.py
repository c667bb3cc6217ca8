"""What every GPU implementation is checked on: small cases for the reference, one for each branch.

A tolerance is |error| / |reference|; 0 asks for equal bits. FP8 attention rounds queries and probabilities to three
mantissa bits, hence 0.05.
"""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stack.kernels.catalog import OPS
from tools.gpu.micro import inputs, step_inputs
from tools.gpu.micro.inputs import BF16, F32, FP8, Call


@dataclass(frozen=True, slots=True)
class Check:
    """One case of an op for some of its implementations."""

    op: str
    impls: tuple[str, ...]
    label: str
    build: Callable[[], Call]
    tolerance: float


def checks() -> Iterator[Check]:
    """All of them. Inputs are drawn on the CPU, where the reference runs."""
    yield from _rows()
    yield from _products()
    yield from _linear_attention()
    yield from _index()
    yield from _sparse()
    yield from _drafts()


def calls_library(op: str, impl: str) -> bool:
    """Whether an implementation's own module hands its work to somebody else's kernels."""
    spec = importlib.util.find_spec(f"{OPS[op].package}.{impl}")
    assert spec is not None and spec.origin is not None
    return impl.startswith("torch_") or "package_missing(" in Path(spec.origin).read_text()


def _rows() -> Iterator[Check]:
    for rows, width in ((1, 512), (7, 4096), (5, 1536)):
        label = f"{rows} x {width}"
        yield Check("rms_norm", ("triton_rows",), label, lambda r=rows, w=width: inputs.rms_norm("cpu", r, w), 3e-3)
        yield Check(  # codes differ where a rounded value does
            "rms_norm", ("triton_rows", "triton_quant"), f"{label}, quantised",
            lambda r=rows, w=width: inputs.rms_norm_quant("cpu", r, w), 1.5e-2,
        )  # fmt: skip
        yield Check("swiglu", ("triton_rows",), label, lambda r=rows, w=width: inputs.swiglu("cpu", r, w), 3e-3)
        yield Check(
            "quantize_rows", ("triton_group",), label, lambda r=rows, w=width: inputs.quantize_rows("cpu", r, w), 0
        )
        yield Check(
            "swiglu_quant", ("triton_fused", "unfused"), label, lambda r=rows, w=width: inputs.swiglu("cpu", r, w), 4e-3
        )
    yield Check(
        "sample", ("cuda_search", "torch_sort"), "30 x 3000", lambda: inputs.sample("cpu", 30, 3000, "mixed"), 0
    )
    yield Check("gated_norm", ("triton_rows",), "9 x 16", lambda: inputs.gated_norm("cpu", 9, 16), 3e-3)
    for dtype in (BF16, FP8):
        yield Check(
            "latent_write", ("triton_scatter",), str(dtype), lambda d=dtype: inputs.latent_write("cpu", 70, 64, d), 5e-3
        )
    for rows, width, first in (
        (1, 4096, False),
        (37, 4096, False),
        (1100, 256, False),
        (4500, 256, False),
        (20, 4096, True),
        (33, 256, False),
        (17, 1024, True),
    ):
        yield Check(
            "mhc_boundary", ("cuda_fused", "cuda_unfused", "cuda_ring"),
            f"{rows} x {width} first={first}",
            lambda r=rows, w=width, f=first: inputs.mhc_boundary("cpu", r, w, f, bf16_fn=f), 4e-3,
        )  # fmt: skip
        yield Check(  # codes differ where a rounded value does
            "mhc_boundary", ("cuda_fused", "cuda_quant"), f"{rows} x {width} first={first}, quantised",
            lambda r=rows, w=width, f=first: step_inputs.mhc_boundary_quant("cpu", r, w, f), 1.5e-2,
        )  # fmt: skip


def _products() -> Iterator[Check]:
    for rows, outputs, width in ((1, 64, 512), (37, 512, 1536), (130, 1296, 512)):
        yield Check(
            "linear", ("torch_matmul",), f"{rows} x {outputs} x {width}",
            lambda r=rows, n=outputs, k=width: inputs.linear("cpu", r, n, k), 4e-3,
        )  # fmt: skip
    for by_row in (False, True):
        yield Check(
            "linear", ("torch_matmul",), f"19 x 4 heads x 256 x 128, by row: {by_row}",
            lambda b=by_row: inputs.linear_heads("cpu", 19, 4, 256, 128, b), 4e-3,
        )  # fmt: skip
    impls = ("deep_gemm", "triton_block")
    for rows, outputs, width in ((1, 256, 512), (37, 512, 1536), (130, 1024, 256), (700, 256, 128)):
        yield Check(
            "linear_fp8", impls, f"{rows} x {outputs} x {width}",
            lambda r=rows, n=outputs, k=width: inputs.linear_fp8("cpu", r, n, k), 3e-3,
        )  # fmt: skip
    for rows, experts, top_k in ((1, 8, 2), (40, 72, 2), (33, 288, 8)):
        for dtype in (F32, BF16):
            yield Check(
                "router", ("triton_router",), f"{rows} x {experts} top-{top_k} {dtype}",
                lambda r=rows, e=experts, k=top_k, d=dtype: inputs.router("cpu", r, e, k, 512, d), 1e-5,
            )  # fmt: skip
    both = inputs.MOE
    for rows, experts, top_k in ((1, 8, 2), (9, 4, 2), (70, 8, 2), (90, 3, 3)):
        yield Check(
            "moe", (*both, "cuda_grouped"), f"{rows} rows, {experts} experts top-{top_k}",
            lambda r=rows, e=experts, k=top_k: inputs.moe("cpu", r, e, k, 512, 256, None), 2e-2,
        )  # fmt: skip
    for rows, experts, top_k, shared, quantised in (
        (1, 8, 2, 128, True), (9, 4, 2, 256, False), (70, 8, 2, 128, True), (131, 3, 3, 256, True),
    ):  # fmt: skip
        label = f"{rows} rows, {experts} experts top-{top_k} beside {shared}{', quantised' if quantised else ''}"
        yield Check(
            "moe", (*inputs.MOE, *inputs.MOE_BESIDE), label,
            lambda r=rows, e=experts, k=top_k, s=shared, q=quantised: step_inputs.moe_with_shared(
                "cpu", r, e, k, 512, 256, s, q
            ), 2e-2,
        )  # fmt: skip
    yield Check(
        "moe", ("by_rows",), "2200 rows, 4 experts top-2 beside 128",
        lambda: step_inputs.moe_with_shared("cpu", 2200, 4, 2, 256, 128, 128, True), 2e-2,
    )  # fmt: skip
    yield Check(
        "moe",
        ("triton_grouped",),
        "20 rows, BF16 experts",
        lambda: inputs.moe("cpu", 20, 8, 2, 256, 128, None, fp8=False),
        8e-3,
    )


def _linear_attention() -> Iterator[Check]:
    forms = ("cuda_fused", "cuda_unfused", "cuda_long")
    for lens, padding in (([1], 0), ([2, 40, 3, 70], 5), ([150, 3, 260], 0)):
        yield Check(
            "kda_conv", forms, f"{lens} + {padding}", lambda n=lens, p=padding: inputs.kda_conv("cpu", n, p, 4), 3e-3
        )
    for lens, padding in (([5], 0), ([64, 1, 130], 7), ([300], 0)):
        for dtype in (F32, BF16):
            yield Check(
                "kda_chunk", inputs.KDA_CHUNK, f"{lens} + {padding} {dtype}",
                lambda n=lens, p=padding, d=dtype: inputs.kda_chunk("cpu", n, p, 4, d), 1.5e-2,
            )  # fmt: skip
    for dtype in (F32, BF16):
        yield Check(
            "kda_decode",
            ("cuda_step", "cuda_step_fast"),
            f"5 {dtype}",
            lambda d=dtype: inputs.kda_decode("cpu", 5, 4, d),
            4e-3,
        )
        for width, kept in ((8, False), (2, True), (6, True)):
            yield Check(
                "kda_verify", inputs.KDA_VERIFY, f"3 x {width} {dtype} snapshots={kept}",
                lambda w=width, d=dtype, s=kept: inputs.kda_verify("cpu", 3, w, 4, d, s), 6e-3,
            )  # fmt: skip
        yield Check(
            "kda_commit",
            inputs.KDA_COMMIT,
            f"7 x 8 {dtype}",
            lambda d=dtype: inputs.kda_commit("cpu", 7, 8, 4, 2, d),
            2e-3,
        )
        yield Check(  # windows and states are copied
            "kda_commit",
            inputs.KDA_COMMIT,
            f"7 x 4 {dtype} from snapshots",
            lambda d=dtype: inputs.kda_commit("cpu", 7, 4, 4, 2, d, snapshots=True),
            0,
        )


def _index() -> Iterator[Check]:
    for fp8 in (True, False):
        for lens, prefix, padding in (([9, 30, 1], [0, 5, 258], 3), ([8, 8], [250, 3], 0), ([300], [10], 0)):
            yield Check(
                "index_write", ("cuda_pool",), f"{lens} behind {prefix} fp8={fp8}",
                lambda n=lens, p=prefix, x=padding, f=fp8: inputs.index_write("cpu", n, p, x, 256, f), 2e-3,
            )  # fmt: skip
    for lens, prefix, padding in (
        ([8, 8, 8], [300, 600, 5], 8),
        ([1, 1], [900, 70], 1),
        ([90], [200], 0),
        ([70, 66], [40, 300], 2),
    ):
        for fp8 in (True, False):
            impls = inputs.INDEX_SELECT if fp8 else ("paged",)
            yield Check(
                "index_select", impls, f"{lens} behind {prefix} fp8={fp8}",
                lambda n=lens, p=prefix, x=padding, f=fp8: inputs.index_select("cpu", n, p, x, 256, f, budget=16), 2e-2,
            )  # fmt: skip


def _sparse() -> Iterator[Check]:
    for dtype, tolerance in ((BF16, 4e-3), (FP8, 5e-2)):
        for rows, heads, width, valid in (
            (5, 16, 2112, None),
            (3, 4, 128, None),
            (2, 32, 192, 67),
            (1, 16, 2112, 2051),
        ):
            yield Check(
                "sparse_mla", inputs.SPARSE_MLA, f"{rows} x {heads} x {width} {dtype}",
                lambda r=rows, h=heads, w=width, v=valid, d=dtype: inputs.sparse_mla("cpu", r, h, w, 4000, d, 64, v),
                tolerance,
            )  # fmt: skip
    for rows, width in ((140, 200), (3, 2112)):  # enough rows for a tile of 128, and few
        yield Check(
            "sparse_mla", ("triton_partial", "tilelang_partial"), f"{rows} x 16 x {width}, {FP8}, the rule's tile",
            lambda r=rows, w=width: inputs.sparse_mla("cpu", r, 16, w, 4000, FP8, 64, min(w, 2051)), 5e-2,
        )  # fmt: skip
    for rows, heads, width in ((5, 64, 2112), (3, 128, 200)):
        yield Check(
            "sparse_mla", ("flash_mla", "cuda_gather", "tilelang_prefill"), f"{rows} x {heads} x {width} {BF16}",
            lambda r=rows, h=heads, w=width: inputs.sparse_mla("cpu", r, h, w, 4000, BF16, 64), 4e-3,
        )  # fmt: skip
        yield Check(
            "sparse_mla", ("cuda_gather", "tilelang_prefill", "tilelang_prefill_q8"),
            f"{rows} x {heads} x {width} {FP8}",
            lambda r=rows, h=heads, w=width: inputs.sparse_mla("cpu", r, h, w, 4000, FP8, 64), 5e-2,
        )  # fmt: skip


def _drafts() -> Iterator[Check]:
    impls = ("triton_block",)
    for lengths, window, page in (([1, 2500, 2048, 4100], 2048, 256), ([0, 2047, 5000], 2048, 0), ([300], 70, 64)):
        yield Check(
            "dflash_block", impls, f"attention, {lengths} in {'pages' if page else 'rings'}, window {window}",
            lambda n=lengths, w=window, p=page: inputs.draft_attention("cpu", n, w, p), 3e-3,
        )  # fmt: skip
    for label, build, tolerance in (
        ("rotation, 40 rows", lambda: inputs.draft_rotation("cpu", 40), 3e-3),
        ("convolution, 3 x 4096", lambda: inputs.draft_convolution("cpu", 3, 4096), 3e-3),
        ("convolution, 1 x 1536", lambda: inputs.draft_convolution("cpu", 1, 1536), 3e-3),
        ("walk, 5 of 3000", lambda: inputs.draft_walk("cpu", 5, 3000), 1e-4),
    ):
        yield Check("dflash_block", impls, label, build, tolerance)
