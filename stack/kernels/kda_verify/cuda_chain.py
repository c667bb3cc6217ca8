"""A verify's rows of KDA in one kernel: states stay in registers over the rows and are never written back.

Shares its recurrence with `kda_decode.cuda_step` and `kda_commit.cuda_fold`, so replaying accepted rows reproduces
stepping bit for bit.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only
from stack.kernels.kda_decode.arguments import verify

if TYPE_CHECKING:
    from torch import Tensor

    from stack.core.memory import ReplayRing

missing = hopper_only

_SOURCE = Path(__file__).parents[1] / "kda_decode" / "kda_step.cu"
KERNELS = {kind: CudaKernel(_SOURCE, f"kda_verify_{kind}") for kind in ("f32", "bf16")}


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
    return verify(KERNELS, *rows, width=width, lower_bound=lower_bound, snapshots_NWHKV=snapshots_NWHKV)
