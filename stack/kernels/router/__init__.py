"""Choose experts.

    s = sigmoid(W x) in FP32;  ids = top k of s + bias, lowest id first on ties;  w = s[ids] / (sum + 1e-20) * scaling

    `router(x_TC, weight_EC, bias_E, *, top_k, scaling, normalize, num_rows=None) -> (ids_TK int32, weights_TK float32)`

`num_rows` int32 scalar tensor of real rows; rows beyond it get id -1 and weight 0.
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("triton_router", "torch_router"))
