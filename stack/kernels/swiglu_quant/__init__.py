"""Clamped SwiGLU, then quantize_rows, through BF16.

    quantize_rows(bf16(swiglu(gate_up)))

    `swiglu_quant(gate_up_TI2, *, limit) -> QuantizedRows`

`triton_fused` is one kernel that writes codes and TMA-ready scales; `unfused` is the chain; bit-equal.
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("triton_fused", "unfused"))
