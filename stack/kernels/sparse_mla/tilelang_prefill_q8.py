"""`tilelang_prefill` with scores from FP8 operands: q is quantised per head row to E4M3, FP8 latents are taken as they
lie. The output is still of widened latents. BF16 latents run as in `tilelang_prefill`.
"""

from functools import partial

from stack.kernels.sparse_mla import tilelang_prefill

missing = tilelang_prefill.missing

sparse_mla = partial(tilelang_prefill.sparse_mla, fp8_scores=True)
