"""`cuda_stream_chunk` in one launch: a block's rows are made by four warps of their own, up to two heads ahead.

The rows that products read stay on the chip, and the special functions' latency hides behind the states' way from
memory. Same ring and same outputs. A live request has an entry of the ring. With snapshots the states after each row
are wanted, and `cuda_chain` runs.
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

BLOCKS = 2
"""Blocks a multiprocessor holds; each has two states under way in BF16, one in FP32."""


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
        _kernel, lambda kind: BLOCKS, *rows, width=width, lower_bound=lower_bound, snapshots_NWHKV=snapshots_NWHKV,
        row_threads=streams.ROW_THREADS,
    )  # fmt: skip


@cache
def _kernel(kind: str) -> "CudaKernel":
    return streams.stream_kernel(streams.VERIFY, f"kda_stream_roles_{kind}", streams.roles_bytes(kind))
