"""`cuda_fold` with exponentials and roots as single instructions; see `kda_decode.cuda_step_fast`."""

from typing import TYPE_CHECKING

from stack.kernels.devices import hopper_only
from stack.kernels.kda_commit import cuda_fold
from stack.kernels.kda_decode.arguments import FAST

if TYPE_CHECKING:
    from torch import Tensor

    from stack.core.memory import ReplayRing

missing = hopper_only

_KERNELS = {kind: kernel.built(FAST) for kind, kernel in cuda_fold.KERNELS.items()}


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
    cuda_fold.fold(_KERNELS, *fields, snapshots_LNWHKV=snapshots_LNWHKV)
