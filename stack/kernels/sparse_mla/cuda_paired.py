"""`cuda_gather` with two warpgroups a block for BF16 latents: each takes half of a tile's rows, latents and output.

A tile's chain of products is half as long, so the gather through the L2 cache, which bounds BF16, has fewer gaps. FP8
latents run as in `cuda_gather`.
"""

from functools import partial

from stack.kernels.sparse_mla import cuda_gather

missing = cuda_gather.missing

sparse_mla = partial(cuda_gather.sparse_mla, paired=True)
