"""Root-mean-square norm.

y = w * x / sqrt(mean(x^2) + eps)        in FP32, rounded once to x's dtype

`rms_norm(x_TC, weight_C, *, eps) -> y_TC`
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("triton_rows", "torch_rows"))
