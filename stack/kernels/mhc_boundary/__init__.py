"""What happens to the residual streams between two sub-layers (mHC).

Write the finished sub-layer back, then form the next one's normalised input:

    X'[j] = post[j] * y + sum_i comb[i, j] * X[i]              (skipped when y is None: X' = X)
    m = fn @ vec(X') / sqrt(mean(vec(X')^2) + norm_eps)        vec is stream-major
    pre = sigmoid(m[:N] * scale[0] + base[:N]) + hc_eps
    post' = 2 sigmoid(m[N:2N] * scale[1] + base[N:2N])
    comb' = sinkhorn(softmax_j(m[2N:] * scale[2] + base[2N:]) + hc_eps)     `iters` column and `iters - 1` row passes
    x = rms_norm(bf16(sum_n pre[n] * X'[n]); norm_weight)

    `mhc_boundary(y_TC, X_TNC, post_TN, comb_TNN, site, norm_weight_C, *, hc_eps, norm_eps, iters)
        -> (X_TNC, x_TC, post_TN, comb_TNN)`

`site` has `fn_MD` [2N + N*N, N*C], `base_M`, `scale_3`, all used in FP32. post and comb are FP32. The streams may be
updated in place. X and x have the compute dtype (rounded once); with float32 compute nothing is rounded.
`mhc_boundary_quant(.., quantize_rows) -> (X_TNC, x_TC, post_TN, comb_TNN, rows)` also gives `quantize_rows(x_TC)`, to
the bit; `quantize_rows` is the bound op, for those that do it by another launch.
`mhc_final(y_TC, X_TNC, post_TN, comb_TNN, norm_weight_C, *, norm_eps) -> (h_TC, mean_TC)` writes back, averages the
streams and normalises: the model's last hidden. `mhc_mean(y, X, post, comb) -> (X, mean_TC)` is the tap of a drafter:
it has written y back, so the next call takes y, post and comb None. In all three, y None means that nothing is pending.
"""

from stack.kernels.binding import Op

OP = Op(
    __name__,
    impls=("cuda_ring", "cuda_fused", "cuda_unfused", "torch_unfused", "cuda_quant"),
)
