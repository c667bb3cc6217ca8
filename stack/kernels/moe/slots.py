"""A fixed number of slots an expert, of which the device alone knows how many are taken. Not an implementation.

T tokens, K choices, C channels, E experts, S slots an expert, I inner width, G groups of 128.
"""

from ctypes import c_int64
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.quantized import GROUP

if TYPE_CHECKING:
    from torch import Tensor

_SOURCE = Path(__file__).with_name("slots.cu")
_TAKE, _FILL, _ACTIVATE = (
    CudaKernel(_SOURCE, name) for name in ("moe_take_slots", "moe_fill_slots", "moe_activate_slots")
)


@dataclass(frozen=True, slots=True)
class Slots:
    """Where each choice's row lies."""

    position_TK: "Tensor"
    """int32: expert * S + slot of each choice, -1 for none."""
    taken_E: "Tensor"
    """int32: slots of each expert that are taken, from the front."""
    capacity: int


@dataclass(frozen=True, slots=True)
class SlotRows:
    """Quantised rows in slots: codes [E, S, C], and scales [E, S, G] that are MN-major within an expert. What lies in
    slots that are not taken is not written."""

    codes_ESC: "Tensor"
    scale_ESG: "Tensor"


def take_slots(ids_TK: "Tensor", experts: int, capacity: int) -> Slots:
    """A slot for each choice. A token's experts must differ and `capacity` be the number of tokens or more, so that no
    expert runs out. One launch; no host synchronisation."""
    import torch

    if experts > 1024:
        raise ValueError(f"the routing kernel takes at most 1024 experts, not {experts}")
    position = torch.empty(ids_TK.shape, dtype=torch.int32, device=ids_TK.device)
    slots = Slots(position, torch.empty(experts, dtype=torch.int32, device=ids_TK.device), capacity)
    _TAKE.launch(
        (1, 1, 1), 1024, [ids_TK.contiguous(), ids_TK.numel(), experts, capacity, slots.position_TK, slots.taken_E]
    )
    return slots


def fill_slots(x_TC: "Tensor", slots: Slots) -> SlotRows:
    """Rows of `x_TC` quantised once and copied to their slots."""
    import torch

    (tokens, width), choices = x_TC.shape, slots.position_TK.shape[1]
    if x_TC.dtype != torch.bfloat16 or width % GROUP:
        raise ValueError("the copy to slots takes bfloat16 rows of a multiple of 128 channels")
    filled = _empty(slots, width)
    places = [slots.position_TK, choices, width, slots.capacity, filled.codes_ESC, filled.scale_ESG]
    _FILL.launch((tokens, 1, 1), min(256, -(-width // 512) * 32), [x_TC, c_int64(x_TC.stride(0)), *places])
    return filled


def activate_slots(gate_up_ESI2: "Tensor", slots: Slots, limit: float | None) -> SlotRows:
    """The clamped SwiGLU of the slots that are taken, quantised as the chain of two ops does."""
    experts, capacity, width = gate_up_ESI2.shape[0], slots.capacity, gate_up_ESI2.shape[2] // 2
    filled = _empty(slots, width)
    results = [filled.codes_ESC, filled.scale_ESG]
    bound = inf if limit is None else limit
    arguments = [gate_up_ESI2, slots.taken_E, width, capacity, float(bound), *results]
    _ACTIVATE.launch((experts * capacity, 1, 1), min(256, -(-width // 512) * 32), arguments)
    return filled


def _empty(slots: Slots, width: int) -> SlotRows:
    import torch

    experts, device = slots.taken_E.shape[0], slots.taken_E.device
    codes = torch.empty((experts, slots.capacity, width), dtype=torch.float8_e4m3fn, device=device)
    scales = torch.empty((experts, width // GROUP, slots.capacity), dtype=torch.float32, device=device)
    return SlotRows(codes, scales.transpose(1, 2))
