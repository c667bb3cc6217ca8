"""The argument structures of `kda_step.cu`, field by field, their checks, and the launch that step and verify share."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from stack.core.memory import ReplayRing
    from stack.kernels.cuda_source import CudaKernel

THREADS = 256
FAST = ("KDA_FAST",)
"""Definition that builds `kda_step.cu` with approximate special functions."""
MAX_WIDTH = 8
"""Rows of a verify that fit the kernel's shared memory."""

_POINTERS = (
    "x f b weight a_log dt_bias state conv slot entry ring_k ring_v ring_g ring_beta ring_x snapshots out".split()
)
_STRIDES = (
    "x_row f_row f_head b_row state_slot state_head conv_slot conv_head ring_k_entry ring_k_row ring_g_entry "
    "ring_g_row "
    "ring_beta_entry ring_beta_row ring_x_entry ring_x_row snap_entry snap_row snap_head"
).split()


class StepArguments(ctypes.Structure):
    """`StepArguments` of the source."""

    _fields_: ClassVar[Any] = (
        [(name, ctypes.c_void_p) for name in _POINTERS]
        + [(name, ctypes.c_int64) for name in _STRIDES]
        + [
            ("width", ctypes.c_int),
            ("num_heads", ctypes.c_int),
            ("lower_bound", ctypes.c_float),
            ("scale", ctypes.c_float),
        ]
    )


class FoldArguments(ctypes.Structure):
    """`FoldArguments` of the source."""

    _fields_: ClassVar[Any] = (
        [
            (name, ctypes.c_void_p)
            for name in "state conv ring_k ring_v ring_g ring_beta ring_x snapshots slot entry accepted".split()
        ]
        + [
            (name, ctypes.c_int64)
            for name in (
                "state_slot state_head state_layer conv_slot conv_head conv_layer k_layer k_entry k_row g_layer "
                "g_entry "
                "g_row beta_layer beta_entry beta_row x_layer x_entry x_row snap_layer snap_entry snap_row snap_head"
            ).split()
        ]
        + [("num_heads", ctypes.c_int)]
    )


def state_kind(state: "Tensor", conv: "Tensor") -> str:
    """Suffix of the kernel for these states. Raises ValueError for types that no kernel has."""
    import torch

    kinds = {torch.float32: "f32", torch.bfloat16: "bf16"}
    if state.dtype not in kinds or conv.dtype != torch.bfloat16:
        raise ValueError(
            f"the KDA kernels take float32 or bfloat16 states and bfloat16 windows, not {state.dtype} and {conv.dtype}"
        )
    if state.shape[-2:] != (128, 128):
        raise ValueError(f"the KDA kernels take heads of 128 x 128, not {tuple(state.shape[-2:])}")
    return kinds[state.dtype]


def step(kernels: "Mapping[str, CudaKernel]", *rows: "Tensor", width: int, lower_bound: float) -> "Tensor":
    """Launch the kernel of the states' kind on `rows`, the tensors that step_arguments takes; the output [T, H, D]."""
    kind, arguments, out_THD = step_arguments(*rows, width=width, lower_bound=lower_bound)
    return _launched(kernels[kind], arguments, rows, out_THD)


def verify(
    kernels: "Mapping[str, CudaKernel]",
    *rows: Any,
    width: int,
    lower_bound: float,
    snapshots_NWHKV: "Tensor | None" = None,
) -> "Tensor":
    """The same for a verify: behind the tensors of a step come the entries of the ring and the ring."""
    kind, arguments, out_THD = verify_arguments(*rows, width=width, lower_bound=lower_bound)
    if snapshots_NWHKV is not None:
        arguments.snapshots = snapshots_NWHKV.data_ptr()
        arguments.snap_entry, arguments.snap_row, arguments.snap_head = snapshots_NWHKV.stride()[:3]
    return _launched(kernels[kind], arguments, rows, out_THD)


def _launched(kernel: "CudaKernel", arguments: StepArguments, rows: "Sequence[Any]", out_THD: "Tensor") -> "Tensor":
    state_SHKV, slot_R = rows[6], rows[8]
    kernel.launch((state_SHKV.shape[1], slot_R.shape[0], 1), THREADS, [arguments])
    return out_THD


def step_arguments(
    x_TX: "Tensor",
    f_THD: "Tensor",
    b_TH: "Tensor",
    weight_X4: "Tensor",
    A_log_H: "Tensor",
    dt_bias_HD: "Tensor",
    state_SHKV: "Tensor",
    conv_SHCDW: "Tensor",
    slot_R: "Tensor",
    *,
    width: int,
    lower_bound: float,
) -> "tuple[str, StepArguments, Tensor]":
    """Kernel suffix, arguments and the empty output [T, H, D]. The caller keeps the tensors alive through the
    launch."""
    import torch

    kind = state_kind(state_SHKV, conv_SHCDW)
    heads, head_dim = f_THD.shape[1], f_THD.shape[2]
    if x_TX.dtype != torch.bfloat16 or f_THD.dtype != torch.bfloat16 or b_TH.dtype != torch.bfloat16:
        raise ValueError("the KDA kernels take bfloat16 x, f and b")
    if weight_X4.dtype != torch.float32 or A_log_H.dtype != torch.float32 or dt_bias_HD.dtype != torch.float32:
        raise ValueError("the KDA kernels take float32 convolution weights, A_log and dt_bias")
    if width > MAX_WIDTH:
        raise ValueError(f"the KDA kernels take at most {MAX_WIDTH} rows a request, not {width}")
    out = torch.empty((x_TX.shape[0], heads, head_dim), dtype=x_TX.dtype, device=x_TX.device)
    arguments = StepArguments(
        x=x_TX.data_ptr(), f=f_THD.data_ptr(), b=b_TH.data_ptr(), weight=weight_X4.data_ptr(), a_log=A_log_H.data_ptr(),
        dt_bias=dt_bias_HD.data_ptr(), state=state_SHKV.data_ptr(), conv=conv_SHCDW.data_ptr(), slot=slot_R.data_ptr(),
        out=out.data_ptr(), x_row=x_TX.stride(0), f_row=f_THD.stride(0), f_head=f_THD.stride(1), b_row=b_TH.stride(0),
        state_slot=state_SHKV.stride(0), state_head=state_SHKV.stride(1), conv_slot=conv_SHCDW.stride(0),
        conv_head=conv_SHCDW.stride(1), width=width, num_heads=heads, lower_bound=lower_bound, scale=head_dim**-0.5,
    )  # fmt: skip
    return kind, arguments, out


def verify_arguments(*rows: Any, width: int, lower_bound: float) -> "tuple[str, StepArguments, Tensor]":
    """The same for a verify: behind the tensors of a step come the entries of the ring and the ring, where a verify
    leaves what its commit needs."""
    *tensors, ring_R, ring = rows
    kind, arguments, out_THD = step_arguments(*tensors, width=width, lower_bound=lower_bound)
    _add_ring(arguments, ring_R, ring)
    return kind, arguments, out_THD


def _add_ring(arguments: StepArguments, ring_R: "Tensor", ring: "ReplayRing") -> None:
    arguments.entry, arguments.ring_k, arguments.ring_v = (x.data_ptr() for x in (ring_R, ring.k_NWHD, ring.v_NWHD))
    arguments.ring_g, arguments.ring_beta, arguments.ring_x = (
        x.data_ptr() for x in (ring.g_NWHD, ring.beta_NWH, ring.x_NWX)
    )
    arguments.ring_k_entry, arguments.ring_k_row = ring.k_NWHD.stride()[:2]
    arguments.ring_g_entry, arguments.ring_g_row = ring.g_NWHD.stride()[:2]
    arguments.ring_beta_entry, arguments.ring_beta_row = ring.beta_NWH.stride()[:2]
    arguments.ring_x_entry, arguments.ring_x_row = ring.x_NWX.stride()[:2]
