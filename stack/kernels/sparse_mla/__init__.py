"""Absorbed attention of each query over its own set of latents.

    s_h = q_h . c_i * scale over the valid indices i;  p = softmax(s);  o_h = sum_i p_i c_i        FP32

    `sparse_mla(q_THL, latent_NPL, index_TW, *, scale, num_splits=None) -> o_THL`

K and V are the same row of L values. `index_TW` int32 token slots, -1 is no token; a row without any gives zeros.
Probabilities are multiplied in the compute dtype (FP8 kernels: times 448, E4M3). Prefill and decode shapes alike.
`triton_partial` and `tilelang_partial` also take `kv_tile`, keys per iteration, from the configuration.
"""

from stack.kernels.binding import Op

OP = Op(
    __name__,
    impls=(
        "cuda_gather",
        "torch_gather",
        "triton_partial",
        "cuda_paired",
        "tilelang_partial",
        "tilelang_prefill",
        "tilelang_prefill_q8",
        "flash_mla",
    ),
)
