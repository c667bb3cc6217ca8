"""The launches that the verifies over streams of states share: blocks that stay walk over the heads of all requests."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stack.kernels.kda_decode import streams
from stack.kernels.kda_decode.arguments import THREADS, verify_arguments
from stack.kernels.kda_verify import cuda_chain

if TYPE_CHECKING:
    from torch import Tensor

    from stack.kernels.cuda_source import CudaKernel


def verify_over_states(
    kernel: "Callable[[str], CudaKernel]",
    blocks_each: Callable[[str], int],
    *rows: Any,
    width: int,
    lower_bound: float,
    snapshots_NWHKV: "Tensor | None",
    row_threads: int = 0,
) -> "Tensor":
    """`rows`: what the op takes by position. `kernel` and the blocks that a multiprocessor holds go by the state's
    kind.

    With `row_threads` a block's rows are made by so many threads of its own, otherwise by a launch before. With
    snapshots the states after each row are wanted, and `cuda_chain` runs.
    """
    if snapshots_NWHKV is not None:
        return cuda_chain.kda_verify(*rows, width=width, lower_bound=lower_bound, snapshots_NWHKV=snapshots_NWHKV)
    kind, arguments, out_THD = verify_arguments(*rows, width=width, lower_bound=lower_bound)
    state_SHKV, slot_R = rows[6], rows[8]
    heads, requests = state_SHKV.shape[1], slot_R.shape[0]
    if not row_threads:
        streams.SPREAD.launch((heads, requests, 1), streams.ROW_THREADS, [arguments])
    blocks = min(heads * requests, streams.resident_blocks(state_SHKV.device, blocks_each(kind)))
    kernel(kind).launch((blocks, 1, 1), THREADS + row_threads, [arguments, requests])
    return out_THD
