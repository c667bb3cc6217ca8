"""Per-row, per-128-column E4M3 quantisation.

    scale = max(|x|, tiny) / 448 over each group;  code = e4m3(x / scale)

    `quantize_rows(x_TK) -> QuantizedRows`

The quotient is a division, rounded to nearest even and saturated; a group of zeros gets the scale tiny / 448, tiny =
1e-10.
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("triton_group", "torch_group"))
