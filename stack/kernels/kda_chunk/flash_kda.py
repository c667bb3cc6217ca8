"""FlashKDA (CUTLASS): two kernels, chunks prepared side by side, then one block a sequence and head.

Best for passes of several requests; a single long one leaves most of the device idle, which is what `split_chunk` is
for. It normalises q and k again and applies the gates itself; it keeps states transposed, so they are copied in and
out. Needs a wheel that reads this PyTorch's tensors.
"""

from typing import TYPE_CHECKING

from stack.kernels.devices import hopper_only, package_missing
from stack.kernels.kda_chunk.segments import begin_pass, entering_states

if TYPE_CHECKING:
    from torch import Tensor


def missing(device: str) -> str | None:
    """Needs Hopper and a FlashKDA that works with this PyTorch."""
    return hopper_only(device) or package_missing("flash_kda") or _refusal()


def _refusal() -> str | None:
    """Some builds import but misread tensors of another PyTorch: one token tells."""
    import torch

    row = torch.zeros((1, 1, 1, 128), dtype=torch.bfloat16, device="cuda")
    scalars = torch.zeros((1, 128), dtype=torch.float32, device="cuda")
    try:
        _forward(
            row, row, row, row, row[..., 0], torch.empty_like(row), scalars[0, :1], scalars, -5.0, None, None, None
        )
    except RuntimeError as error:
        return f"its build does not fit this PyTorch ({str(error).splitlines()[0]})"
    return None


def _forward(*arguments: object) -> None:
    import flash_kda

    q, k, v, f, b, out, a_log, dt_bias, lower_bound, initial, final, starts = arguments
    flash_kda.fwd(q, k, v, f, b, 128**-0.5, out, a_log, dt_bias, lower_bound, initial, final, starts)


def kda_chunk(
    q_THD: "Tensor",
    k_THD: "Tensor",
    v_THD: "Tensor",
    f_THD: "Tensor",
    b_TH: "Tensor",
    A_log_H: "Tensor",
    dt_bias_HD: "Tensor",
    state_SHKV: "Tensor",
    slot_R: "Tensor",
    start_R1: "Tensor",
    has_state_R: "Tensor",
    *,
    lower_bound: float,
    extend_lens: tuple[int, ...],
) -> "Tensor":
    """See the op's contract. Requests with rows come first in `slot_R`."""
    import torch

    cut, o_THD = begin_pass(v_THD, extend_lens)
    if not cut.rows:
        return o_THD
    real = slice(0, cut.rows)
    slots, entering = entering_states(state_SHKV, slot_R, has_state_R, cut)
    initial = entering.transpose(-1, -2).contiguous()
    final = torch.empty_like(initial)
    rows = (x[None, real].contiguous() for x in (q_THD, k_THD, v_THD, f_THD, b_TH))
    _forward(*rows, o_THD[None, real], A_log_H, dt_bias_HD, lower_bound, initial, final, cut.cu_seqlens)
    state_SHKV[slots] = final.transpose(-1, -2).to(state_SHKV.dtype)
    return o_THD
