"""KDA short convolution, SiLU, q/k norm and packing for prefill.

    u_t[c] = silu(sum_tau w[c, tau] * s_{t-3+tau}[c])      tap 3 is the current token; FP32, rounded to x's dtype
    q = u_q / sqrt(sum u_q^2 + 1e-6) * D^-0.5 per head;  k likewise without D^-0.5;  v = u_v       FP32, rounded again

    `kda_conv(x_TX, weight_X4, conv_SHCDW, slot_R, start_R1, request_T, position_T, has_state_R)
        -> (q_THD, k_THD, v_THD)`

X = 3*H*D channels in the order q, k, v; C = 3 parts; W = 3 kept inputs, oldest first. Rows of x may be strided.
Reads each request's window where `has_state_R` (bool) and leaves its last three pre-convolution inputs there. Padding
rows get zeros. `cuda_unfused` is the chain conv, split copy, two norms; `cuda_fused` one kernel; bit-equal.
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("cuda_long", "cuda_fused", "cuda_unfused", "torch_conv"))
