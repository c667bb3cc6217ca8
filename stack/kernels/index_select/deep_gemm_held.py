"""`deep_gemm` with each row's keys in registers during the top-k; other passes go to the pages as in `paged_held`."""

from functools import partial

from stack.kernels.index_select import deep_gemm

missing = deep_gemm.missing

index_select = partial(deep_gemm.index_select, held=True)
