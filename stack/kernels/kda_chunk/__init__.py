"""Gated delta rule over whole prompts (KDA prefill).

    g = lower_bound * sigmoid(exp(A_log[h]) * (f + dt_bias));  beta = sigmoid(b)
    S <- diag(exp(g_t)) S;  u = beta_t (v_t - S' k_t);  S <- S + k_t u';  o_t = S' q_t

    `kda_chunk(q_THD, k_THD, v_THD, f_THD, b_TH, A_log_H, dt_bias_HD, state_SHKV, slot_R, start_R1, has_state_R, *,
        lower_bound, extend_lens) -> o_THD`

State [K, V] per head in FP32 arithmetic; read where `has_state_R`, else zero; the final state is rounded once into its
slot. q and k arrive normalised. `extend_lens` are host integers. The CPU chunk form is aligned to multiples of 64
tokens of the request.
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("cuda_prepared", "by_requests", "split_chunk", "flash_kda", "fla_chunk", "torch_chunk"))
