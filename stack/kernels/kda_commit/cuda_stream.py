"""The commit of a verify over all KDA layers as a stream of states: the next state is on its way while one is folded.

The same bits as `cuda_fold`; `kda_stream_commit.cu` says how. A turn's slot, entry and count are loaded a turn before
they are used, and windows move by permutes. Snapshots hold the states already, and are copied by `cuda_fold`.
"""

from functools import cache
from typing import TYPE_CHECKING

from stack.kernels.devices import hopper_only
from stack.kernels.kda_commit.over_states import commit_over_states
from stack.kernels.kda_decode import streams

if TYPE_CHECKING:
    from torch import Tensor

    from stack.core.memory import ReplayRing
    from stack.kernels.cuda_source import CudaKernel

missing = hopper_only

BLOCKS = 2
"""Blocks a multiprocessor holds; registers and, with FP32 states, shared memory leave room for no more."""


def kda_commit(
    state_SHLKV: "Tensor",
    conv_SHLCDW: "Tensor",
    ring_all: "ReplayRing",
    slot_R: "Tensor",
    ring_R: "Tensor",
    num_accepted_R: "Tensor",
    *,
    snapshots_LNWHKV: "Tensor | None" = None,
) -> None:
    """See the op's contract."""
    fields = (state_SHLKV, conv_SHLCDW, ring_all, slot_R, ring_R, num_accepted_R)
    commit_over_states(_kernel, lambda kind: BLOCKS, fields, snapshots_LNWHKV)


@cache
def _kernel(kind: str) -> "CudaKernel":
    return streams.stream_kernel(streams.COMMIT, f"kda_stream_fold_{kind}", streams.fold_bytes(kind), KDA_BLOCKS=BLOCKS)
