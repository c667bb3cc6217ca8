"""`cuda_chunk` with exponentials, quotients and roots as single instructions; see `kda_decode.cuda_step_fast`."""

from typing import TYPE_CHECKING

from stack.kernels.devices import hopper_only
from stack.kernels.kda_decode.arguments import FAST, verify
from stack.kernels.kda_verify import cuda_chain, cuda_chunk

if TYPE_CHECKING:
    from torch import Tensor

    from stack.core.memory import ReplayRing

missing = hopper_only

_CHUNK = {kind: kernel.built(FAST) for kind, kernel in cuda_chunk.KERNELS.items()}
_CHAIN = {kind: kernel.built(FAST) for kind, kernel in cuda_chain.KERNELS.items()}


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
    """See the op's contract. With snapshots the rows are stepped through."""
    rows = (x_TX, f_THD, b_TH, weight_X4, A_log_H, dt_bias_HD, state_SHKV, conv_SHCDW, slot_R, ring_R, ring)
    kernels = _CHUNK if snapshots_NWHKV is None else _CHAIN
    return verify(kernels, *rows, width=width, lower_bound=lower_bound, snapshots_NWHKV=snapshots_NWHKV)
