"""Fold the accepted rows of a verify into the states of all KDA layers.

For each request the first a = num_accepted_R[r] entries of its ring are replayed in order,
    k <- k / sqrt(sum k^2 + 1e-6);  S <- diag(exp(g)) S;  u = beta (v - S' k);  S <- S + k u'
and stored with one rounding; the convolution window becomes the three inputs that end at the a-th. Bit-identical to
stepping with FP32 states, except for `cuda_chunk` and `cuda_stream_chunk` (to 2^-16).

    `kda_commit(state_SHLKV, conv_SHLCDW, ring_all, slot_R, ring_R, num_accepted_R, *, snapshots_LNWHKV=None) -> None`

L KDA layers; `ring_all` has a leading layer dimension. With snapshots the state is copied from position a - 1 instead.
a = 0 and slot 0 leave everything as it is.
"""

from stack.kernels.binding import Op

OP = Op(
    __name__,
    impls=("cuda_stream", "cuda_fold", "cuda_chunk", "torch_fold", "cuda_fold_fast", "cuda_stream_chunk"),
)
