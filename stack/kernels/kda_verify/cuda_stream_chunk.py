"""A verify's rows of KDA at once over a stream of states: the product form of `cuda_chunk` in the launches of
`cuda_stream`.

The ring gets the same bits as from stepping; outputs differ in their last bits, since operands enter products as two
BF16 terms (relative error 2^-16). What rows of 16 columns read of each other stays in the registers of one warp. A live
request has an entry of the ring. With snapshots the states after each row are wanted, and `cuda_chain` runs.
"""

from functools import cache
from typing import TYPE_CHECKING

from stack.kernels.devices import hopper_only
from stack.kernels.kda_decode import streams
from stack.kernels.kda_verify.over_states import verify_over_states

if TYPE_CHECKING:
    from torch import Tensor

    from stack.core.memory import ReplayRing
    from stack.kernels.cuda_source import CudaKernel

missing = hopper_only

BLOCKS = 3
"""Blocks a multiprocessor holds with BF16 states, two with FP32 states: what shared memory has room for."""


def kda_verify(
    x_TX: "Tensor",
    f_THD: "Tensor",
    b_TH: "Tensor",
    weight_X4: "Tensor",
    A_log_H: "Tensor",
    dt_bias_HD: "Tensor",
    state_SHKV: "Tensor",
    conv_SHCDW: "Tensor",
    slot_R: "Tensor",
    ring_R: "Tensor",
    ring: "ReplayRing",
    *,
    width: int,
    lower_bound: float,
    snapshots_NWHKV: "Tensor | None" = None,
) -> "Tensor":
    """See the op's contract."""
    rows = (x_TX, f_THD, b_TH, weight_X4, A_log_H, dt_bias_HD, state_SHKV, conv_SHCDW, slot_R, ring_R, ring)
    return verify_over_states(
        _kernel, _blocks, *rows, width=width, lower_bound=lower_bound, snapshots_NWHKV=snapshots_NWHKV,
    )  # fmt: skip


def _blocks(kind: str) -> int:
    return 2 if kind == "f32" else BLOCKS


@cache
def _kernel(kind: str) -> "CudaKernel":
    return streams.stream_kernel(
        streams.VERIFY, f"kda_stream_chunk_{kind}", streams.chunk_bytes(kind), KDA_CHUNK_BLOCKS=BLOCKS
    )
