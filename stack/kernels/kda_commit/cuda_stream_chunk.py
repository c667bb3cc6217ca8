"""The commit of a verify as one update of rank `accepted` over a stream of states: `cuda_chunk`'s formula in the launch
of `cuda_stream`, with both products on the tensor cores. The next turn's rows are asked for as soon as this turn's are
taken, before its products.

Bits differ from stepping (operands enter products as two BF16 terms, relative error 2^-16). Snapshots hold the states
already, and are copied by `cuda_fold`.
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

BLOCKS = 3
"""Blocks a multiprocessor holds with BF16 states, two with FP32 states: what shared memory has room for."""


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
    commit_over_states(_kernel, _blocks, fields, snapshots_LNWHKV)


def _blocks(kind: str) -> int:
    return streams.fitting_blocks(streams.chunk_fold_bytes(kind), BLOCKS)


@cache
def _kernel(kind: str) -> "CudaKernel":
    return streams.stream_kernel(
        streams.COMMIT, f"kda_stream_chunk_fold_{kind}", streams.chunk_fold_bytes(kind), KDA_CHUNK_BLOCKS=BLOCKS
    )
