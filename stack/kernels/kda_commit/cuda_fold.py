"""The commit of a verify over all KDA layers in one launch: replay in registers, one rounding at the store.

Shares its recurrence with `kda_decode.cuda_step` and `kda_verify.cuda_chain`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only
from stack.kernels.kda_decode.arguments import FoldArguments, state_kind

if TYPE_CHECKING:
    from torch import Tensor

    from stack.core.memory import ReplayRing

missing = hopper_only

_SOURCE = Path(__file__).parents[1] / "kda_decode" / "kda_step.cu"
KERNELS = {kind: CudaKernel(_SOURCE, f"kda_fold_{kind}") for kind in ("f32", "bf16")}


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
    fold(KERNELS, *fields, snapshots_LNWHKV=snapshots_LNWHKV)


def fold(kernels: "Mapping[str, CudaKernel]", *fields: Any, snapshots_LNWHKV: "Tensor | None" = None) -> None:
    """Launch the kernel of the states' kind on `fields`, the arguments of the op."""
    kind, arguments = fold_arguments(*fields)
    if snapshots_LNWHKV is not None:
        arguments.snapshots = snapshots_LNWHKV.data_ptr()
        strides = snapshots_LNWHKV.stride()[:4]
        arguments.snap_layer, arguments.snap_entry, arguments.snap_row, arguments.snap_head = strides
    state_SHLKV, slot_R = fields[0], fields[3]
    kernels[kind].launch((state_SHLKV.shape[1], state_SHLKV.shape[2], slot_R.shape[0]), 256, [arguments])


def fold_arguments(
    state_SHLKV: "Tensor",
    conv_SHLCDW: "Tensor",
    ring_all: "ReplayRing",
    slot_R: "Tensor",
    ring_R: "Tensor",
    num_accepted_R: "Tensor",
) -> tuple[str, FoldArguments]:
    """Kernel suffix and arguments. The caller keeps the tensors alive through the launch."""
    kind = state_kind(state_SHLKV, conv_SHLCDW)
    heads = state_SHLKV.shape[1]
    k, g, beta, x = ring_all.k_NWHD, ring_all.g_NWHD, ring_all.beta_NWH, ring_all.x_NWX
    arguments = FoldArguments(
        state=state_SHLKV.data_ptr(), conv=conv_SHLCDW.data_ptr(), ring_k=k.data_ptr(),
        ring_v=ring_all.v_NWHD.data_ptr(),
        ring_g=g.data_ptr(), ring_beta=beta.data_ptr(), ring_x=x.data_ptr(), slot=slot_R.data_ptr(),
        entry=ring_R.data_ptr(),
        accepted=num_accepted_R.data_ptr(), state_slot=state_SHLKV.stride(0), state_head=state_SHLKV.stride(1),
        state_layer=state_SHLKV.stride(2), conv_slot=conv_SHLCDW.stride(0), conv_head=conv_SHLCDW.stride(1),
        conv_layer=conv_SHLCDW.stride(2), k_layer=k.stride(0), k_entry=k.stride(1), k_row=k.stride(2),
        g_layer=g.stride(0),
        g_entry=g.stride(1), g_row=g.stride(2), beta_layer=beta.stride(0), beta_entry=beta.stride(1),
        beta_row=beta.stride(2),
        x_layer=x.stride(0), x_entry=x.stride(1), x_row=x.stride(2), num_heads=heads,
    )  # fmt: skip
    return kind, arguments
