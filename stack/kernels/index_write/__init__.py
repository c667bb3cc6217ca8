"""Keep an indexer key in the tail ring and close pools that are complete.

    k = layer_norm(ik; norm weight, bias, 1e-6);  ring[slot, position mod ring] = (k, gate)
    a pool p = tokens kp*p .. kp*p + kp - 1 is closed by the row at position kp*p + kp - 1:
    a = softmax over its kp slots of (gate + ape) per channel;  K = sum a * k        FP32
    fp8: K -> bf16 -> Hadamard * D^-0.5 -> bf16 -> E4M3 with scale = 2^ceil(log2(max(|K|, 1e-4) / 448)), exactly as
    `stack.kernels.index_rows` defines it (order of the butterflies included)

    `index_write(ik_TD, ig_TD, norm_weight_D, norm_bias_D, ape_KD, tail_SR2D, codes_NQD, scale_NQ, page_table_SP,
        slot_R,
        request_T, position_T, start_R1, write_T) -> None`

Q = page_size / kp pools a page. `scale_NQ` is None where index rows are not FP8 (codes then hold plain values without
Hadamard). Earlier tokens of an open pool come from this pass or from the ring. Padding rows write nothing.
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("cuda_pool", "torch_pool"))
