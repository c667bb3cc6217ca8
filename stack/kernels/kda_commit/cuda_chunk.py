"""The commit of a verify as one update of rank `accepted`, over all KDA layers in one launch.

    S <- E_a S + sum_s (k_s E_a / E_s) u_s',  u as in `kda_verify.cuda_chunk`, E_t the product of decays up to row t

Bound by reading and writing the states. Bits differ from stepping (operands of one product enter as two BF16 terms);
`cuda_fold` is the exact form, and runs where snapshots hold the states already.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only
from stack.kernels.kda_commit import cuda_fold
from stack.kernels.kda_verify.cuda_chunk import SHARED_BYTES

if TYPE_CHECKING:
    from torch import Tensor

    from stack.core.memory import ReplayRing

missing = hopper_only

_SOURCE = Path(__file__).parents[1] / "kda_decode" / "kda_step.cu"
_KERNELS = {kind: CudaKernel(_SOURCE, f"kda_fold_chunk_{kind}", SHARED_BYTES) for kind in ("f32", "bf16")}


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
    if snapshots_LNWHKV is not None:
        return cuda_fold.kda_commit(*fields, snapshots_LNWHKV=snapshots_LNWHKV)
    kind, arguments = cuda_fold.fold_arguments(*fields)
    _KERNELS[kind].launch((state_SHLKV.shape[1], state_SHLKV.shape[2], slot_R.shape[0]), 256, [arguments])
    return None
