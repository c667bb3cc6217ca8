"""Root-mean-square norm.

y = w * x / sqrt(mean(x^2) + eps)        in FP32, rounded once to x's dtype

`rms_norm(x_TC, weight_C, *, eps) -> y_TC`
`rms_norm_quant(x_TC, weight_C, *, eps, quantize_rows) -> (y_TC, rows)` also gives `quantize_rows(y_TC)`, to the bit;
`quantize_rows` is the bound op, for those that do it by another launch.
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("triton_rows", "torch_rows", "triton_quant"))
