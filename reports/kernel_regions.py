"""From names of kernels in a trace to regions of a layer. A name that no rule knows is the rest, so sums stay whole."""

import re
from collections.abc import Mapping
from typing import Any

REST = "the rest"
PRODUCTS, MOVEMENT, QUANTISATION = "expert products", "expert movement and router", "activation and quantisation"
ATTENTION, INDEXER = "sparse attention", "indexer"
DRAFT = "draft alone"

_RULES = tuple(
    (region, re.compile(pattern))
    for region, pattern in (
        (PRODUCTS, r"^_(beside|grouped)|GemmType\)1"),
        (MOVEMENT, r"^moe_|^_(scores|choose)\b"),
        (QUANTISATION, r"^_(fused|quantize|swiglu)"),
        ("mHC boundary", r"^mhc_"),
        ("dense FP8 products", r"deep_gemm::sm90_fp8_gemm|^_product\b"),
        ("BF16 products", r"^nvjet_|cublasLt|cutlass.*gemm"),
        ("linear attention", r"^kda_|^_(scan|summaries|entries|gate)\b|flash_kda|^chunk_|kda_gate"),
        (ATTENTION, r"^sparse_mla|^_(merge|place_rows|partial|flat)\b|flash_mla|^attend"),
        (INDEXER, r"^(index|page_scores|top_pools)|mqa_logits|^_(stage|bounds|score)\b"),
        (DRAFT, r"^_(convolve|turn|walk|fold)\b|^_attend\b|mbtopk"),
        ("norms and latent rows", r"^_(norm|write)"),
        ("sampling", r"^sample_"),
    )
)


def region_of(kernel: str, impls: Mapping[str, str]) -> str:
    """The region of one kernel; `impls` are the run's, since two ops name a kernel of theirs alike."""
    if re.match(r"_attend\b", kernel) and impls.get("sparse_mla") == "triton_partial":
        return ATTENTION
    return next((region for region, pattern in _RULES if pattern.search(kernel)), REST)


def regions_ms(kernels: Mapping[str, Mapping[str, Any]], impls: Mapping[str, str]) -> dict[str, float]:
    """Milliseconds of each region in one step, the longest first."""
    found: dict[str, float] = {}
    for name, one in kernels.items():
        region = region_of(name, impls)
        found[region] = found.get(region, 0.0) + one["ms"]
    return dict(sorted(found.items(), key=lambda item: -item[1]))
