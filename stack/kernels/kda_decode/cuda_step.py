"""One KDA step in one kernel: convolution, norms, gate and recurrence, states and windows advanced in place.

`kda_step.cu` holds the recurrence that verify and commit share. Serves head width 128, BF16 activations and windows,
FP32 or BF16 states.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only
from stack.kernels.kda_decode.arguments import step

if TYPE_CHECKING:
    from torch import Tensor

missing = hopper_only

_SOURCE = Path(__file__).with_name("kda_step.cu")
KERNELS = {kind: CudaKernel(_SOURCE, f"kda_decode_{kind}") for kind in ("f32", "bf16")}


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
    return step(KERNELS, *rows, width=1, lower_bound=lower_bound)
