"""KDA's output norm with a sigmoid gate.

y = w * o / sqrt(mean(o^2) + eps) * sigmoid(gate)        per head, FP32, rounded once

`gated_norm(o_THD, gate_THD, weight_D, *, eps) -> y_TX`       X = H * D
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("triton_rows", "torch_rows"))
