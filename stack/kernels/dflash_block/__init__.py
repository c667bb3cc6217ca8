"""The DFlash2 draft's own pieces: rotary positions, grouped dynamic convolution, block attention, selector walk.

B requests, W rows of a block, C channels or context rows, H query heads, G key heads, D head width, V vocabulary,
E = W - 1 drafted slots, K candidates, R selector rank. All arithmetic is FP32, rounded once to the inputs' dtype.

    `rope(x_THD, position_T, *, theta) -> x_THD`
        pairs (i, i + D/2) turn by position * theta^(-2i/D)
    `dynamic_conv(y_BWC, coef_BW2C) -> y_BWC`
        coef[.., 0] * y_t + coef[.., 1] * y_{t-1}, zero before the block's first row
    `block_attention(q_BWHD, k_BWGD, v_BWGD, context_k_BCGD, context_v_BCGD, context_position_BC, position_BW, *,
        window, scale) -> o_BWHD`
        a row at position p sees context rows with position in [p - window + 1, ..] (-1 marks an empty row) and every
        row of its own block; there is no causal order inside the block
    `selector_walk(unary_BEK, ids_BEK, z_BER, predecessor_VR, successor_VR, anchor_B, temperature_B, uniform_BE)
        -> (token_BE, q_BEK)`
        score(e; prev, c) = unary[e, c] + <predecessor[prev] * z_e, successor[c]>; greedy rows (temperature 0) take the
        arg max, first candidate on ties, and report a one-hot q; others draw from q = softmax(score / temperature)
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("torch_block",))
