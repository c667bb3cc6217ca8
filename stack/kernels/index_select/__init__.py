"""Which tokens each query attends to.

    I(t, p) = sum_h w[t, h] * relu((q[t, h] . K_p) * D^-0.5)       over pools whose last token kp*p + kp - 1 <=
    position t
    the top min(budget, candidates) pools, lowest pool first on ties, expanded to tokens, then the open tail
    floor((t + 1) / kp) * kp .. t

    `index_select(q_THD, w_TH, codes_NQD, scale_NQ, page_table_SP, slot_R, request_T, position_T, *, kpool, budget,
        max_context, workspace_bytes) -> index_TW`

`index_TW` int32 [T, W], W = budget * kpool + kpool - 1 rounded up to 64: token slots page * page_size + offset, -1
padded, valid
entries first. `w_TH` already carries H^-0.5. With FP8 keys q is rotated and quantised per head row in the same way.
`budget` counts pools (index_topk / kpool). `max_context` is a host bound; scores live in tiles of at most
`workspace_bytes`. Padding rows get -1 everywhere.
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("deep_gemm_held", "deep_gemm", "paged", "torch_select", "paged_wgmma", "paged_held"))
