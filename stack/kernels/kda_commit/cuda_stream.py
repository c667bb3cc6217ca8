"""The commit of a verify over all KDA layers as a stream of states: the next state is on its way while one is folded.

The same bits as `cuda_fold`; `kda_stream_commit.cu` says how. Windows move in pieces of 16 bytes. Snapshots hold the
states already, and are copied by `cuda_fold`.
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

PARTS = 1
"""2: a head in halves, by blocks of half the size, of which it holds twice as many (three with FP32 states)."""

NUMBERS_AHEAD = 1
"""1: a turn's slot, entry and count are loaded a turn before they are used."""

PERMUTED_WINDOW = 1
"""1: windows move by permutes of bytes, eight channels a thread."""


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
    commit_over_states(_kernel, _blocks, fields, snapshots_LNWHKV, parts=PARTS)


def _blocks(kind: str) -> int:
    return streams.fitting_blocks(streams.fold_bytes(kind, PARTS), BLOCKS * PARTS)


@cache
def _kernel(kind: str) -> "CudaKernel":
    return streams.stream_kernel(
        streams.COMMIT, f"kda_stream_fold_{kind}", streams.fold_bytes(kind, PARTS), KDA_BLOCKS=_blocks(kind),
        KDA_PARTS=PARTS, KDA_NUMBERS_AHEAD=NUMBERS_AHEAD, KDA_PERMUTED_WINDOW=PERMUTED_WINDOW,
    )  # fmt: skip
