"""KDA over the rows of a verify, committed states untouched.

Rows r*w .. r*w + w - 1 belong to request r. Same formulas and the same order of operations as kda_decode, but states
and windows are only read; what a commit needs is written to the replay ring of the layer.

    `kda_verify(x_TX, f_THD, b_TH, weight_X4, A_log_H, dt_bias_HD, state_SHKV, conv_SHCDW, slot_R, ring_R, ring, *,
        width, lower_bound, snapshots_NWHKV=None) -> o_THD`

`ring` is a layer's view of the replay ring (fields below, N entries); `ring_R` int32 maps requests to entries (0 =
sink).
    k_NWHD, v_NWHD (after convolution and SiLU, k before its norm), g_NWHD and beta_NWH (FP32), x_NWX (before
    convolution)
With `snapshots_NWHKV` the state after each row is stored there too (commit by snapshot). Padding: zeros, no writes.
"""

from stack.kernels.binding import Op

OP = Op(
    __name__,
    impls=(
        "cuda_stream_roles",
        "cuda_chunk",
        "cuda_chain",
        "torch_chain",
        "cuda_chunk_fast",
        "cuda_stream",
        "cuda_stream_chunk",
    ),
)
