"""A few tensor operations over whole rows; runs on every device."""

from torch import Tensor
from torch.nn import functional

from stack.kernels.row_tiles import pad_rows


def swiglu(gate_up_TI2: Tensor, *, limit: float | None) -> Tensor:
    """The gated rows [T, I] in the input's dtype."""
    gate, up = pad_rows(gate_up_TI2.float(), 16).chunk(2, -1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (functional.silu(gate.contiguous()) * up)[: gate_up_TI2.shape[0]].to(gate_up_TI2.dtype)
