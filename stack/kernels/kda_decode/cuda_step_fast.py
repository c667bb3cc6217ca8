"""`cuda_step` with exponentials, quotients and roots as single instructions.

Goes with `kda_verify.cuda_chunk_fast` and `kda_commit.cuda_fold_fast`: step, verify and commit repeat each other's
values, so a configuration names all three or none.
"""

from typing import TYPE_CHECKING

from stack.kernels.devices import hopper_only
from stack.kernels.kda_decode import cuda_step
from stack.kernels.kda_decode.arguments import FAST, step

if TYPE_CHECKING:
    from torch import Tensor

missing = hopper_only

_KERNELS = {kind: kernel.built(FAST) for kind, kernel in cuda_step.KERNELS.items()}


def kda_decode(
    x_RX: "Tensor",
    f_RHD: "Tensor",
    b_RH: "Tensor",
    weight_X4: "Tensor",
    A_log_H: "Tensor",
    dt_bias_HD: "Tensor",
    state_SHKV: "Tensor",
    conv_SHCDW: "Tensor",
    slot_R: "Tensor",
    *,
    lower_bound: float,
) -> "Tensor":
    """See the op's contract."""
    rows = (x_RX, f_RHD, b_RH, weight_X4, A_log_H, dt_bias_HD, state_SHKV, conv_SHCDW, slot_R)
    return step(_KERNELS, *rows, width=1, lower_bound=lower_bound)
