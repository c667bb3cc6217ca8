"""Inputs of every op at a stated size, on a stated device, with what bugs hide behind: strided views, padding, uneven
scales.

A builder returns `Call(args, kwargs, outputs)`; `outputs` picks the argument tensors that the op writes. All draws
come from the default generator, so a seed and a device fix them.
"""

from tools.gpu.micro.inputs.attention import (
    INDEX_SELECT,
    SPARSE_MLA,
    index_select,
    index_write,
    latent_write,
    sparse_mla,
)
from tools.gpu.micro.inputs.drafts import (
    DRAFT_DIM,
    DRAFT_HEADS,
    DRAFT_KV_HEADS,
    DRAFT_WIDTH,
    draft_attention,
    draft_convolution,
    draft_rotation,
    draft_walk,
)
from tools.gpu.micro.inputs.drawing import BF16, F32, FP8, I32, Call, fp8_weight
from tools.gpu.micro.inputs.rows import (
    MOE,
    MOE_BESIDE,
    gated_norm,
    grouped_product,
    linear,
    linear_fp8,
    linear_heads,
    mhc_boundary,
    moe,
    quantize_rows,
    rms_norm,
    rms_norm_quant,
    router,
    sample,
    swiglu,
)
from tools.gpu.micro.inputs.states import (
    KDA_CHUNK,
    KDA_COMMIT,
    KDA_VERIFY,
    kda_chunk,
    kda_commit,
    kda_conv,
    kda_decode,
    kda_verify,
)

__all__ = [
    "BF16",
    "DRAFT_DIM",
    "DRAFT_HEADS",
    "DRAFT_KV_HEADS",
    "DRAFT_WIDTH",
    "F32",
    "FP8",
    "I32",
    "INDEX_SELECT",
    "KDA_CHUNK",
    "KDA_COMMIT",
    "KDA_VERIFY",
    "MOE",
    "MOE_BESIDE",
    "SPARSE_MLA",
    "Call",
    "draft_attention",
    "draft_convolution",
    "draft_rotation",
    "draft_walk",
    "fp8_weight",
    "gated_norm",
    "grouped_product",
    "index_select",
    "index_write",
    "kda_chunk",
    "kda_commit",
    "kda_conv",
    "kda_decode",
    "kda_verify",
    "latent_write",
    "linear",
    "linear_fp8",
    "linear_heads",
    "mhc_boundary",
    "moe",
    "quantize_rows",
    "rms_norm",
    "rms_norm_quant",
    "router",
    "sample",
    "sparse_mla",
    "swiglu",
]
