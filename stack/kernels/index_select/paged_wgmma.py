"""`paged` with the scores on warpgroup instructions: FP8 keys under 32 heads of 128 channels."""

from functools import partial

from stack.kernels.devices import hopper_only
from stack.kernels.index_select import paged

missing = hopper_only

index_select = partial(paged.index_select, warpgroup=True)
