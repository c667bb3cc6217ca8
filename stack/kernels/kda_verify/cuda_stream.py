"""A verify's rows of KDA as a stream of states: the next head's state is on its way while one is stepped through.

The same bits as `cuda_chain`, so that commit and decode agree with it; `kda_stream_verify.cu` says how. Two launches:
rows go into the ring first (q into the output), where many blocks hide the special functions' latency, and are read
back from the L2 cache. A live request has an entry of the ring. With snapshots the states after each row are wanted,
and the stepping kernel of `cuda_chain` runs.
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
"""Blocks a multiprocessor holds; registers and, with FP32 states, shared memory leave room for no more."""


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
    )  # fmt: skip


@cache
def _kernel(kind: str) -> "CudaKernel":
    return streams.stream_kernel(
        streams.VERIFY, f"kda_stream_chain_{kind}", streams.chain_bytes(kind), KDA_BLOCKS=BLOCKS
    )
