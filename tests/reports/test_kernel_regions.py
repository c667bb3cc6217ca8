"""Every kernel of ours has a region, and sums stay whole."""

import re
from pathlib import Path

import pytest

from reports.kernel_regions import ATTENTION, DRAFT, REST, region_of, regions_ms

KERNELS = Path(__file__).parents[2] / "stack" / "kernels"
_CUDA = re.compile(r'"((?:kda|mhc|moe|index|page|top|sparse|sample)_[a-z_0-9{}]+)"')


def _ours() -> set[str]:
    names: set[str] = set()
    for file in KERNELS.rglob("*.py"):
        text = file.read_text()
        names |= set(re.findall(r"\b(_[a-z_]+)\[grid", text))
        if "CudaKernel(" in text:
            names |= set(_CUDA.findall(text)) - {path.name for path in KERNELS.iterdir()}
    return names


def test_every_kernel_of_ours_has_a_region():
    assert len(_ours()) > 40
    assert [name for name in sorted(_ours()) if region_of(name, {}) == REST] == []


def test_two_ops_that_name_a_kernel_alike_are_told_apart_by_what_ran():
    assert region_of("_attend", {"sparse_mla": "cuda_gather"}) == DRAFT
    assert region_of("_attend", {"sparse_mla": "triton_partial"}) == ATTENTION


@pytest.mark.parametrize(
    ("kernel", "region"),
    [
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0, 0u, (deep_gemm::GemmType)1, x>", "expert products"),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0, 0u, (deep_gemm::GemmType)0, x>", "dense FP8 products"),
        ("void deep_gemm::sm90_fp8_mqa_logits<32u, 128u, true>", "indexer"),
        ("nvjet_sm90_tst_256x112_64x4_2x1_v_bz_coopA_TNT", "BF16 products"),
        ("Memcpy DtoH (Device -> Pinned)", REST),
    ],
)  # fmt: skip
def test_kernels_of_libraries_are_told_apart(kernel, region):
    assert region_of(kernel, {}) == region


def test_no_time_is_lost():
    kernels = {"_beside": {"ms": 2.0}, "moe_combine": {"ms": 0.25}, "unheard_of": {"ms": 1.5}}
    assert regions_ms(kernels, {}) == {"expert products": 2.0, REST: 1.5, "expert movement and router": 0.25}
