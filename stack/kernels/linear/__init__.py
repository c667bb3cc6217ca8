"""Matrix product of activations with an unquantised weight.

    y = x @ weight.T

    `linear(x_TK, weight_NK, *, out_dtype=None) -> y_TN`
    `linear_heads(x_THK, weight_HNK, *, by_row=False) -> y_THN`    one weight a head, y[:, h] = x[:, h] @ weight[h].T

T rows, K inputs, N outputs. Accumulates in FP32; `out_dtype` defaults to x's. Rows of x may be strided (a slice of the
columns of a fused product). `linear_heads` stores [H, T, N], so that y[:, h] is contiguous, or `by_row` [T, H, N], so
that a row's heads lie side by side for the product that follows. `torch_tiled` (CPU) multiplies fixed row tiles, so a
row's result never depends on how many rows came with it; `torch_matmul` is the library's own product.
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("torch_tiled", "torch_matmul"))
