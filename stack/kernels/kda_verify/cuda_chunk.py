"""A verify's rows of KDA at once: one tensor-core product with the state, then a triangular recurrence over the rows.

    with E_t the product of decays up to row t:   u_t = beta_t (v_t - (k_t E_t)'S - sum_{s<t} (k_t . k_s E_t / E_s) u_s)
                                                  o_t = (q_t E_t)'S + sum_{s<=t} (q_t . k_s E_t / E_s) u_s

The state is read once, in the fragments of the product, and never changed: the kernel is bound by that read. Operands
enter as two BF16 terms (relative error 2^-16), so outputs differ from stepping in their last bits; what it leaves in
the ring does not. With snapshots the states after each row are wanted, and the stepping kernel runs. See
`kda_step.cu`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only
from stack.kernels.kda_decode.arguments import verify
from stack.kernels.kda_verify import cuda_chain

if TYPE_CHECKING:
    from torch import Tensor

    from stack.core.memory import ReplayRing

missing = hopper_only

_SOURCE = Path(__file__).parents[1] / "kda_decode" / "kda_step.cu"
SHARED_BYTES = 8 * 2448 + (16 + 8 + 32) * 136 * 4 + 512
KERNELS = {kind: CudaKernel(_SOURCE, f"kda_verify_chunk_{kind}", SHARED_BYTES) for kind in ("f32", "bf16")}


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
    if snapshots_NWHKV is not None:
        return cuda_chain.kda_verify(*rows, width=width, lower_bound=lower_bound, snapshots_NWHKV=snapshots_NWHKV)
    return verify(KERNELS, *rows, width=width, lower_bound=lower_bound)
