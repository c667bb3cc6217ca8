"""Clamped SwiGLU.

y = silu(min(gate, limit)) * clamp(up, -limit, limit)        FP32, rounded once; no limit where it is None

`swiglu(gate_up_TI2, *, limit) -> y_TI`        first I columns are the gate
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("triton_rows", "torch_rows"))
