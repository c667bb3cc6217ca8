"""What is timed: the shapes of one H200's share of the model, each with its floor and what the best public kernel
needs.

`flop` and `bytes` are the least work; a floor is the larger of flop over the unit's rate and bytes over 4.8 TB/s
(datasheet).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from stack.kernels.catalog import OPS
from tools.gpu.micro import inputs, step_inputs
from tools.gpu.micro.inputs import BF16, F32, FP8, Call

HEADS, EXPERTS, HIDDEN, INNER = 16, 72, 4096, 2048
FP8_RATE, BF16_RATE, HBM = 1979e12, 989e12, 4.8e12
KDA_VARIANTS = tuple(
    f"cuda_prepared@{choice}"
    for choice in (
        "segment_scan.SCAN_COLUMNS=32",
        "segment_scan.SCAN_STAGES=2",
        "segment_scan.SCAN_WARPS=8",
        "segment_scan.SUMMARY_COLUMNS=128,segment_scan.SUMMARY_WARPS=8",
        "segment_scan.SUMMARY_STAGES=3",
        "segments.TARGET_SEGMENTS=16",
        "segments.TARGET_SEGMENTS=16,segment_scan.SCAN_COLUMNS=128,segment_scan.SCAN_WARPS=8",
        "segments.TARGET_SEGMENTS=6",
    )
)

PARTIAL_VARIANTS = {
    FP8: ("tilelang_partial@kv_tile=32,tilelang_partial.STAGES_32=1",),
    BF16: ("tilelang_partial@tilelang_partial.STAGES_32=1",),
}

RING_VARIANTS = ("cuda_ring@cuda_ring.RANKS=16,cuda_ring.AHEAD=2", "cuda_ring@cuda_ring.EARLY=1")


@dataclass(frozen=True, slots=True)
class Shape:
    """One timed call."""

    op: str
    impls: tuple[str, ...]
    label: str
    build: Callable[[], Call]
    bytes: float
    flop: float = 0.0
    rate: float = FP8_RATE
    anchor: str = ""
    target_us: float | None = None
    variants: tuple[str, ...] = ()
    """Implementations under other launch choices, as `variants` reads them."""

    @property
    def floor_us(self) -> float:
        """The time that no version runs much under."""
        return max(self.bytes / HBM, self.flop / self.rate) * 1e6


def shapes() -> Iterator[Shape]:
    """All of them, largest shares of a chunk or step first."""
    yield from _sparse()
    yield from _experts()
    yield from _products()
    yield from _linear_attention()
    yield from _streams()
    yield from _index()
    yield from _rest()
    yield from _drafts()


def _sparse() -> Iterator[Shape]:
    for rows, anchor, target in (
        (32768, "SGLang 25 ms", 12000),
        (8192, "", None),
        (1056, "about 400 us", 330),
        (56, "", None),
    ):
        for dtype in (FP8, BF16):
            size = 1 if dtype == FP8 else 2
            yield Shape(
                "sparse_mla", inputs.SPARSE_MLA, f"{rows} x 16 heads x 2112 of 65536, {dtype}",
                lambda r=rows, d=dtype: inputs.sparse_mla("cuda", r, 16, 2112, 65536, d, valid=2051),
                65536 * 512 * size + rows * (16 * 512 * 4 + 2112 * 4), rows * 2051 * 512 * 16 * 4.0,
                FP8_RATE if dtype == FP8 else BF16_RATE, anchor, target,
                PARTIAL_VARIANTS[dtype] if rows == 1056 else (),
            )  # fmt: skip
    for rows in (768, 1024):  # partial and combine, as published: a tile of 128 keys against one of 32
        for contexts, label in ((1, "one context"), (rows // 8, "a context a request")):
            touched = min(rows * 2051, contexts * 65536)
            yield Shape(
                "sparse_mla", ("cuda_gather", "triton_partial", "tilelang_partial"),
                f"{rows} x 16 heads x 2112, {label}, {FP8}",
                lambda r=rows, c=contexts: inputs.sparse_mla("cuda", r, 16, 2112, 65536, FP8, valid=2051, contexts=c),
                touched * 512 + rows * (16 * 512 * 4 + 2112 * 4), rows * 2051 * 512 * 16 * 4.0, FP8_RATE,
                "tile 128 over 32: 1.12x",
                variants=("triton_partial@kv_tile=32", "tilelang_partial@kv_tile=32", "cuda_gather@num_splits=2"),
            )  # fmt: skip
    for dtype, impls, anchor, target in (  # a rank that holds all heads for its share of the tokens
        (FP8, ("cuda_gather", "tilelang_prefill", "tilelang_prefill_q8"), "P9 2,870-3,270 us", 3760),
        (BF16, ("flash_mla", "cuda_gather", "tilelang_prefill"), "P10 3,760 us", 3670),
    ):
        size = 1 if dtype == FP8 else 2
        yield Shape(
            "sparse_mla", impls, f"8192 x 64 heads x 2112 of 65536, {dtype}",
            lambda d=dtype: inputs.sparse_mla("cuda", 8192, 64, 2112, 65536, d, valid=2051),
            65536 * 512 * size + 8192 * (64 * 512 * 4 + 2112 * 4), 8192 * 2051 * 512 * 64 * 4.0,
            FP8_RATE if dtype == FP8 else BF16_RATE, anchor, target,
        )  # fmt: skip
    for contexts, label in ((1, "one context"), (33, "a context a request")):  # the same rank's share of a verify
        touched = min(264 * 2051, contexts * 65536)
        yield Shape(
            "sparse_mla", ("cuda_gather", "tilelang_partial"), f"264 x 64 heads x 2112, {label}, {FP8}",
            lambda c=contexts: inputs.sparse_mla("cuda", 264, 64, 2112, 65536, FP8, valid=2051, contexts=c),
            touched * 512 + 264 * (64 * 512 * 4 + 2112 * 4), 264 * 2051 * 512 * 64 * 4.0, FP8_RATE,
            "D9 174 us at FlashMLA's best rate", 200,
        )  # fmt: skip


def _experts() -> Iterator[Shape]:
    weights = EXPERTS * (2 * INNER * HIDDEN + INNER * HIDDEN)
    for rows, anchor, target in (
        (32768, "P1 + P2 2,960 us", None),
        (8192, "", None),
        (2112, "", None),
        (1056, "D3 609-655 us", 580),
        (1024, "", None),
        (264, "", None),
        (128, "", None),
        (56, "SGLang 357 us", None),
    ):
        touched = EXPERTS * (1 - (1 - 2 / EXPERTS) ** rows)
        impls = ("deep_gemm_contiguous", "triton_grouped", "deep_gemm_masked")[: 1 if rows > 4096 else 2 + (rows < 512)]
        impls += ("cuda_grouped",) if rows <= 4096 else ()
        yield Shape(
            "moe", impls, f"{rows} rows, 72 experts top-2", lambda r=rows: inputs.moe("cuda", r, EXPERTS, 2, HIDDEN,
            INNER, None),
            weights * touched / EXPERTS + rows * 4 * HIDDEN, rows * 2 * 3 * 2.0 * INNER * HIDDEN, FP8_RATE, anchor,
            target, ("triton_grouped@tiles=tuned_decode",) if rows == 1024 else (),
        )  # fmt: skip
    for rows, inner in ((32768, 512), (1056, 512), (128, 512), (56, 512), (1, 512)):
        touched = EXPERTS * (1 - (1 - 2 / EXPERTS) ** rows)
        impls = ("by_rows",) if rows > 4096 else ("cuda_grouped", "triton_grouped", "triton_beside")
        yield Shape(
            "moe", impls, f"{rows} rows, 72 experts top-2 beside {inner}, quantised",
            lambda r=rows, n=inner: step_inputs.moe_with_shared("cuda", r, EXPERTS, 2, HIDDEN, INNER, n, True),
            weights * touched / EXPERTS + 3 * inner * HIDDEN + rows * 4 * HIDDEN,
            rows * 3 * 2.0 * (2 * INNER + inner) * HIDDEN,
        )  # fmt: skip
    for rows, outputs, width, anchor in (
        (1056, 4096, 4096, "D13 34-84 us"),
        (1024, 4096, 4096, "DeepGEMM's dip"),
        (960, 4096, 4096, "below it"),
        (1088, 4096, 4096, "above it"),
        (32768, 4096, 4096, ""),
        (32768, 4096, 1536, ""),
        (56, 4096, 4096, ""),
        (8192, 16384, 1536, "P14 338-395 us"),
    ):
        yield Shape(
            "linear_fp8", ("deep_gemm", "triton_block"), f"{rows} x {outputs} x {width}",
            lambda r=rows, n=outputs, k=width: inputs.linear_fp8("cuda", r, n, k),
            rows * width + outputs * width + rows * outputs * 2, 2.0 * rows * outputs * width, FP8_RATE, anchor,
        )  # fmt: skip


def _products() -> Iterator[Shape]:
    """Each grouped product by itself, and the products of unquantised weights."""
    for rows, outputs, width, anchor, target in (
        (65536, 2 * INNER, HIDDEN, "P1 1,900-1,985 us", 1759),
        (65536, HIDDEN, INNER, "P2 950-990 us", 1050),
        (2112, 2 * INNER, HIDDEN, "D1", 315),
        (2112, HIDDEN, INNER, "D2", 160),
    ):
        yield Shape(
            "moe", ("deep_gemm_contiguous",), f"grouped product, {rows} x {outputs} x {width}",
            lambda r=rows, n=outputs, k=width: inputs.grouped_product("cuda", r, EXPERTS, n, k),
            EXPERTS * outputs * width + rows * (width + 2 * outputs), 2.0 * rows * outputs * width, FP8_RATE, anchor,
            target,
        )  # fmt: skip
    for rows, outputs, width, anchor, target in (
        (1056, 6416, HIDDEN, "D6 70 us", 66),
        (1056, HIDDEN, 2048, "D7 28 us", 25),
        (32768, 6416, HIDDEN, "P4 2,130-2,540 us", 2200),
        (32768, HIDDEN, 2048, "P5 724-745 us", 700),
        (1056, 38720, HIDDEN, "D14", 430),
    ):
        yield Shape(
            "linear", ("torch_matmul",), f"{rows} x {outputs} x {width}",
            lambda r=rows, n=outputs, k=width: inputs.linear("cuda", r, n, k),
            2 * (rows * width + outputs * width + rows * outputs), 2.0 * rows * outputs * width, BF16_RATE, anchor,
            target,
        )  # fmt: skip


def _linear_attention() -> Iterator[Shape]:
    for lens, anchor, target in (
        ([32768], "Triton 2,800 us, FlashKDA 2,360", 1500),
        ([8192], "", None),
        ([4096] * 8, "", None),
    ):
        rows = sum(lens)
        yield Shape(
            "kda_chunk", inputs.KDA_CHUNK, f"{len(lens)} x {lens[0]}, 16 heads",
            lambda n=lens: inputs.kda_chunk("cuda", n, 0, HEADS),
            rows * HEADS * 128 * 2 * 5, 0.0, BF16_RATE, anchor, target, KDA_VARIANTS if len(lens) == 1 else (),
        )  # fmt: skip
    yield Shape(
        "kda_chunk", inputs.KDA_CHUNK, "1 x 8192, 64 heads", lambda: inputs.kda_chunk("cuda", [8192], 0, 4 * HEADS),
        8192 * 4 * HEADS * 128 * 2 * 5, 0.0, BF16_RATE, "P7 780-1,210 us", 900,
    )  # fmt: skip
    yield Shape(
        "kda_conv", ("cuda_fused", "cuda_unfused", "cuda_long"), "32768 x 6144",
        lambda: inputs.kda_conv("cuda", [32768], 0, HEADS),
        32768 * 6144 * 4, anchor="conv alone 316 us", target_us=210,
    )  # fmt: skip
    for dtype, size in ((F32, 4), (BF16, 2)):
        state = HEADS * 128 * 128 * size
        yield Shape(
            "kda_verify", inputs.KDA_VERIFY, f"132 x 8, 16 heads, {dtype}",
            lambda d=dtype: inputs.kda_verify("cuda",
            132, 8, HEADS, d),
            132 * state, anchor="347 us with snapshots", target_us=60,
        )  # fmt: skip
        yield Shape(
            "kda_commit", inputs.KDA_COMMIT, f"132 x 7 of 8, 2 layers, {dtype}",
            lambda d=dtype: inputs.kda_commit("cuda", 132, 8, HEADS, 2, d, 7),
            2 * 132 * state * 2, target_us=100,
        )  # fmt: skip
        for requests in (8, 1) if dtype == BF16 else ():
            yield Shape(
                "kda_verify", inputs.KDA_VERIFY, f"{requests} x 8, 16 heads, {dtype}",
                lambda r=requests, d=dtype: inputs.kda_verify("cuda", r + 1, 8, HEADS, d), requests * state,
            )  # fmt: skip
            yield Shape(
                "kda_commit", inputs.KDA_COMMIT, f"{requests} x 7 of 8, 2 layers, {dtype}",
                lambda r=requests, d=dtype: inputs.kda_commit("cuda", r + 1, 8, HEADS, 2, d, 7), 4 * requests * state,
            )  # fmt: skip
        yield Shape(  # what a commit by replay is measured against
            "kda_verify", ("cuda_chain",), f"132 x 8, 16 heads, {dtype}, snapshots",
            lambda d=dtype: inputs.kda_verify("cuda", 132, 8, HEADS, d, True), 9 * 132 * state,
            anchor="347 us" if dtype == F32 else "",
        )  # fmt: skip
        yield Shape(
            "kda_commit", ("cuda_fold",), f"132 x 7 of 8, 2 layers, {dtype}, from snapshots",
            lambda d=dtype: inputs.kda_commit("cuda", 132, 8, HEADS, 2, d, 7, True), 2 * 132 * state * 2,
        )  # fmt: skip
        for requests in (56, 128):
            yield Shape(
                "kda_decode", ("cuda_step", "cuda_step_fast"), f"{requests}, 16 heads, {dtype}", lambda r=requests,
                d=dtype: inputs.kda_decode("cuda", r, HEADS, d),
                requests * state * 2, anchor="55 us for 12 heads x 128" if requests == 128 else "",
            )  # fmt: skip
    yield Shape(
        "gated_norm",
        ("triton_rows",),
        "32768 x 16 x 128",
        lambda: inputs.gated_norm("cuda", 32768, HEADS),
        32768 * 2048 * 6,
    )


def _streams() -> Iterator[Shape]:
    for rows, anchor, target in (
        (32768, "SGLang 2,430 us a layer of two", None),
        (8192, "P13 314 us, stretch 175", 230),
        (1056, "48 us", 30),
        (56, "", None),
    ):
        yield Shape(
            "mhc_boundary", ("cuda_fused", "cuda_unfused", "cuda_ring"),
            f"{rows} x 4 x 4096", lambda r=rows: inputs.mhc_boundary("cuda", r, HIDDEN, bf16_fn=True),
            rows * HIDDEN * 2 * 10, anchor=anchor, target_us=target, variants=RING_VARIANTS,
        )  # fmt: skip
    for rows in (32768, 1056, 56):
        yield Shape(
            "mhc_boundary", ("cuda_fused", "cuda_quant"), f"{rows} x 4 x 4096, quantised",
            lambda r=rows: step_inputs.mhc_boundary_quant("cuda", r, HIDDEN), rows * HIDDEN * (2 * 10 + 33 / 32),
        )  # fmt: skip


def _index() -> Iterator[Shape]:
    for lens, prefix, anchor in (
        ([8192], [57344], "P11 + P12 1,490 us"),
        ([32768], [32768], ""),
        ([8] * 132, [65536] * 132, "D10 + D11 210 us"),
        ([1] * 56, [65536] * 56, ""),
    ):
        pools = sum(n * (p + n / 2) / 4 for n, p in zip(lens, prefix, strict=True))
        yield Shape(
            "index_select", inputs.INDEX_SELECT[0 if lens[0] > 8 else 2 :],
            f"{len(lens)} x {lens[0]} behind {prefix[0]}",
            lambda n=lens, p=prefix: inputs.index_select("cuda", n, p, 0, 256, True),
            sum(p / 4 * 132 for p in prefix), pools * 32 * 128 * 2.0, FP8_RATE, anchor,
        )  # fmt: skip
    yield Shape(
        "index_write",
        ("cuda_pool",),
        "32768",
        lambda: inputs.index_write("cuda", [32768], [0], 0, 256, True),
        32768 * 545,
    )
    yield Shape(
        "latent_write",
        ("triton_scatter",),
        "32768 fp8",
        lambda: inputs.latent_write("cuda", 32768, 256, FP8),
        32768 * 512 * 5,
    )


def _rest() -> Iterator[Shape]:
    for rows, width, anchor, target in (
        (65536, INNER, "P3 170 us", 170),
        (65536, 512, "published 161 -> 76 us a layer", 76),
        (16384, INNER, "", None),
        (2112, INNER, "", None),
    ):
        yield Shape(
            "swiglu_quant", ("triton_fused", "unfused"), f"{rows} x {2 * width} -> {width}",
            lambda r=rows, w=width: inputs.swiglu("cuda", r, w),
            rows * (4 * width + width * 33 / 32), anchor=anchor, target_us=target,
        )  # fmt: skip
    yield Shape(
        "quantize_rows",
        ("triton_group",),
        "32768 x 4096",
        lambda: inputs.quantize_rows("cuda", 32768, HIDDEN),
        32768 * HIDDEN * 3.03,
    )
    yield Shape(
        "rms_norm", ("triton_rows",), "32768 x 1536", lambda: inputs.rms_norm("cuda", 32768, 1536), 32768 * 1536 * 4
    )
    for rows in (32768, 1056):
        yield Shape(
            "rms_norm", ("triton_rows", "triton_quant"), f"{rows} x 1536, quantised",
            lambda r=rows: inputs.rms_norm_quant("cuda", r, 1536), rows * 1536 * (4 + 33 / 32),
        )  # fmt: skip
    for rows, experts, top_k in ((32768, EXPERTS, 2), (1056, EXPERTS, 2), (8192, 4 * EXPERTS, 8)):
        yield Shape(
            "router",
            ("triton_router",),
            f"{rows} x {experts} x 4096",
            lambda r=rows, e=experts, k=top_k: inputs.router("cuda", r, e, k, HIDDEN, exact=True),
            rows * HIDDEN * 2,
        )
    for kind in ("greedy", "top_p", "all"):
        yield Shape(
            "sample", ("cuda_search", "torch_sort"), f"128 x 38720, {kind}",
            lambda k=kind: inputs.sample("cuda", 128, 38720, k),
            128 * 38720 * 4,
        )  # fmt: skip
    yield Shape(
        "swiglu", ("triton_rows",), "32768 x 3072", lambda: inputs.swiglu("cuda", 32768, 3072), 32768 * 3072 * 6
    )


def _drafts() -> Iterator[Shape]:
    impls, heads = ("torch_block", "triton_block"), inputs.DRAFT_HEADS + inputs.DRAFT_KV_HEADS
    row = inputs.DRAFT_KV_HEADS * inputs.DRAFT_DIM * 4
    for requests in (132, 8, 1):
        rows = requests * inputs.DRAFT_WIDTH
        for page, place in ((256, "pages"), (0, "rings")):
            yield Shape(
                "dflash_block", impls, f"attention, {requests} x 8 over 2047 in {place}",
                lambda n=requests, p=page: inputs.draft_attention("cuda", [4096] * n, 2048, p),
                requests * 2047 * row, rows * inputs.DRAFT_HEADS * 2055 * inputs.DRAFT_DIM * 4.0, BF16_RATE,
            )  # fmt: skip
        for label, build, size in (
            ("rotation, {} x 8", inputs.draft_rotation, rows * heads * inputs.DRAFT_DIM * 4),
            ("convolution, {} x 8 x 4096", inputs.draft_convolution, rows * (HIDDEN * 4 + HIDDEN // 4)),
            ("walk, {} of 38720", inputs.draft_walk, requests * 7 * 18 * 512),
        ):
            arguments = {inputs.draft_rotation: (rows,), inputs.draft_convolution: (requests, HIDDEN)}
            sizes = arguments.get(build, (requests, 38720))
            yield Shape("dflash_block", impls, label.format(requests), lambda b=build, s=sizes: b("cuda", *s), size)


def hindrance(only: str) -> str:
    """Why the ops `only` names, separated by commas, cannot run here, or nothing."""
    if unknown := [name for name in only.split(",") if name and name not in OPS]:
        return f"no op {unknown[0]}; there are {', '.join(OPS)}"
    return "" if torch.cuda.is_available() else "kernels run on a GPU, and PyTorch sees none here"


def device_name() -> str:
    """The card."""
    return torch.cuda.get_device_name()
