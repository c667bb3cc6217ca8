"""`paged_wgmma` with each row's keys in registers during the top-k."""

from functools import partial

from stack.kernels.devices import hopper_only
from stack.kernels.index_select import paged

missing = hopper_only

index_select = partial(paged.index_select, warpgroup=True, held=True)
