"""Next tokens from logits, on the device.

Greedy rows take the lowest id of the largest logit. Others: softmax(logits / temperature), keep top_k, then the
smallest
set reaching top_p, then those above min_p of the largest; the token is the first whose cumulative probability (in
descending order of probability, ties by id) exceeds u * total.

    `sample(logits_TV, temperature_T, top_k_T, top_p_T, min_p_T, uniform_T) -> token_T`
    `uniforms(seed_T, position_T, stream) -> uniform_T`      Philox-4x32-10 keyed by seed, counter (position, stream)
    `filtered_probs(logits_TV, temperature_T, top_k_T, top_p_T, min_p_T) -> p_TV`      what rejection sampling compares

A row's draw depends on its seed and position alone.
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("cuda_search", "torch_sort"))
