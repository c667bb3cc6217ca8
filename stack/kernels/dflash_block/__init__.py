"""The DFlash2 draft's own pieces: rotary positions, grouped dynamic convolution, block attention, selector walk.

B requests, W rows of a block, C context rows (channels for the convolution), N groups of channels, H query heads,
G key heads, D head width, V vocabulary, S slots or pages of a pool with P rows each, E = W - 1 drafted slots,
K candidates, R selector rank. All arithmetic is FP32, rounded once to the inputs' dtype.

    `norm_rope(x_THD, gain_2D, position_T, *, num_queries, eps, theta, norm) -> x_THD`
        RMS norm of every head, rounded to x's dtype: the first `num_queries` heads by gain 0, the others by gain 1;
        then pairs (i, i + D/2) turn by position * theta^(-2i/D). `norm` is the bound `rms_norm` for implementations
        that do not compute it themselves
    `dynamic_conv(y_BWC, base_2C, dynamic_BW2N) -> y_BWC`
        tap[0] * y_t + tap[1] * y_{t-1}, zero before the block's first row; tap = base + dynamic of the channel's group
    `block_attention(q_BWHD, k_BWGD, v_BWGD, pool_k_SPGD, pool_v_SPGD, first_BC, second_BC, context_position_BC,
        position_BW, *, window, scale) -> o_BWHD`
        context row c of request b is pool[first[b, c], second[b, c]]: a slot and a place in its ring, or a page and a
        row of it. A row at position p sees context rows with position in [p - window + 1, ..] (-1 marks an empty row)
        and every row of its own block; there is no causal order inside the block. Rows of the pool that no row of the
        block sees may hold anything, NaN included
    `selector_walk(unary_BEK, ids_BEK, z_BER, predecessor_VR, successor_VR, anchor_B, temperature_B, uniform_BE)
        -> (token_BE, q_BEK)`
        score(e; prev, c) = unary[e, c] + <predecessor[prev] * z_e, successor[c]>; greedy rows (temperature 0) take the
        arg max, first candidate on ties, and report a one-hot q; others draw from q = softmax(score / temperature)
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("triton_block", "torch_block"))
