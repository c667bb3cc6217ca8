"""The experts of a layer: the routed ones, and the shared one beside them.

    r_t = sum_k weights[t, k] * Down_e(swiglu(GateUp_e x_t)),  e = ids[t, k];  FP32 over k, rounded once
    y_t = r_t + Shared(x_t), rounded as a sum of two rounded terms;  y = r without a shared expert

    `moe(x_TC, ids_TK, weights_TK, experts, *, limit, swiglu_quant, shared=None, rows=None) -> y_TC`

`experts` has `gate_up` and `down`: tensors [E, 2I, C] and [E, C, I], or E stacked Fp8Weights (codes [E, N, K], scales
[E, N/128, K/128]). id -1 contributes nothing. `swiglu_quant` is the bound op that FP8 paths use between the products.
`shared` is a `SharedExpert`: the shared expert as it runs by itself, and its weights for those who run it in the same
launches (`triton_beside`, `cuda_grouped`, and `by_rows` where that serves). `rows` are x's QuantizedRows where
somebody has quantised it already; nobody need take them.
`by_rows`, `triton_grouped` and `triton_beside` also take `tiles`, a table of `tables.py`
(`kernels.moe_table`).
"""

from stack.kernels.binding import Op

OP = Op(
    __name__,
    impls=(
        "by_rows",
        "deep_gemm_contiguous",
        "triton_grouped",
        "torch_grouped",
        "triton_beside",
        "deep_gemm_masked",
        "cuda_grouped",
    ),
)
