"""Block-scaled FP8 matrix product.

    y = sum over 128-wide groups g of  scale_x[t, g] * scale_w[n / 128, g] * (x_code[t, g] . w_code[n, g])

    `linear_fp8(x: QuantizedRows, weight: Fp8Weight, *, out_dtype) -> y_TN`

Accumulation in FP32. `torch_dequantized` (CPU) multiplies the dequantised FP32 operands in fixed row tiles.
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("deep_gemm", "triton_block", "torch_dequantized"))
