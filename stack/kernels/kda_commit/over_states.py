"""The launch that the commits over streams of states share: blocks that stay walk over all heads, layers and
requests."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from stack.kernels.kda_commit import cuda_fold
from stack.kernels.kda_decode import streams
from stack.kernels.kda_decode.arguments import THREADS

if TYPE_CHECKING:
    from torch import Tensor

    from stack.core.memory import ReplayRing
    from stack.kernels.cuda_source import CudaKernel


def commit_over_states(
    kernel: "Callable[[str], CudaKernel]",
    blocks_each: Callable[[str], int],
    fields: "tuple[Tensor, Tensor, ReplayRing, Tensor, Tensor, Tensor]",
    snapshots_LNWHKV: "Tensor | None",
) -> None:
    """`fields`: what the op takes by position. `kernel` and the blocks that a multiprocessor holds go by the state's
    kind. Snapshots hold the states already, and are copied by `cuda_fold`."""
    if snapshots_LNWHKV is not None:
        cuda_fold.kda_commit(*fields, snapshots_LNWHKV=snapshots_LNWHKV)
        return
    kind, arguments = cuda_fold.fold_arguments(*fields)
    state_SHLKV, slot_R = fields[0], fields[3]
    heads, layers, requests = state_SHLKV.shape[1], state_SHLKV.shape[2], slot_R.shape[0]
    blocks = min(heads * layers * requests, streams.resident_blocks(state_SHLKV.device, blocks_each(kind)))
    kernel(kind).launch((blocks, 1, 1), THREADS, [arguments, layers, requests])
