"""The routed experts of a layer.

    y_t = sum_k weights[t, k] * Down_e(swiglu(GateUp_e x_t)),  e = ids[t, k];  FP32 over k, rounded once

    `moe(x_TC, ids_TK, weights_TK, experts, *, limit, swiglu_quant) -> y_TC`

`experts` has `gate_up` and `down`: tensors [E, 2I, C] and [E, C, I], or E stacked Fp8Weights (codes [E, N, K], scales
[E, N/128, K/128]). id -1 contributes nothing. `swiglu_quant` is the bound op that FP8 paths use between the products.
`by_rows` and `triton_grouped` also take `tiles`, a table of `tables.py` (`kernels.moe_table`).
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("by_rows", "deep_gemm_contiguous", "triton_grouped", "torch_grouped"))
