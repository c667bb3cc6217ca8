"""The DFlash2 draft's own pieces: grouped dynamic convolution, block attention over a ring, selector walk.

`dynamic_conv(y_BWC, coef_BW2C) -> y_BWC`           coef[.., 0] * y_t + coef[.., 1] * y_{t-1}, zero before the block
`block_attention(q_BWHD, k_BWGD, v_BWGD, context_k, context_v, length_B, *, window, scale) -> o_BWHD`
    row at position p sees context positions in [p - window + 1, length) and every row of the block
`selector_walk(unary_BEK, ids_BEK, z_BER, predecessor_VR, successor_VR, anchor_B, uniform_BE=None, temperature_B=None)
    -> (token_BE, q_BEK)`
`rope(x, position, theta)`       rotate halves
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("torch_block",))
