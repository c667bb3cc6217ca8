"""One token of KDA for each request, states advanced in place.

Convolution, SiLU, norms, gate, recurrence (formulas of kda_conv and kda_chunk) for one row a request.

    `kda_decode(x_RX, f_RHD, b_RH, weight_X4, A_log_H, dt_bias_HD, state_SHKV, conv_SHCDW, slot_R, *, lower_bound) ->
        o_RHD`

Slot 0 is padding: the row's output is zeros and nothing is written.
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("cuda_step", "torch_step", "cuda_step_fast"))
