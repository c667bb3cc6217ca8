"""One instance for both halves is configured by the half that a suite measures."""

from workflows.engines.stack import colocated_settings

HALVES = {
    "prefill": {"kernels.moe": "deep_gemm_contiguous", "cache.prefix": "hybrid_radix", "scheduler.chunk_tokens": 32768},
    "decode": {"kernels.moe": "triton_grouped", "cache.prefix": "none", "speculation.method": "mtp"},
}


def test_a_prefill_suite_runs_prefills_kernels():
    found = colocated_settings(HALVES, measures="prefill")
    assert found["kernels.moe"] == "deep_gemm_contiguous"
    assert found["speculation.method"] == "mtp"


def test_a_decode_suite_runs_decodes_kernels_and_keeps_states():
    found = colocated_settings(HALVES, measures="decode")
    assert (found["kernels.moe"], found["cache.prefix"]) == ("triton_grouped", "hybrid_radix")
