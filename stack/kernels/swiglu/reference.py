"""The formula in FP64."""

from torch import Tensor


def swiglu(gate_up_TI2: Tensor, *, limit: float | None) -> Tensor:
    """The gated rows [T, I] in the input's dtype."""
    gate, up = gate_up_TI2.double().chunk(2, -1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (gate * gate.sigmoid() * up).to(gate_up_TI2.dtype)
