"""Everything a step needs from the host, in one buffer and one copy.

`Packer` collects named integer and float arrays, lays them out in a pinned staging buffer and hands out device views
of the same bytes, so that a step costs one host-to-device copy whatever it holds. Sections start at multiples of 16
bytes.

Knows nothing of plans. Whoever packs again must first know that the previous copy was read (`runner.py` has that
barrier).
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

_ALIGN = 16
_DTYPES = {"i": torch.int32, "l": torch.int64, "f": torch.float32}


class Packer:
    """One staging buffer on the host and its twin on the device; both grow when a step needs more."""

    def __init__(self, device: torch.device, capacity_bytes: int) -> None:
        self._device = device
        self._staging = self._pinned(capacity_bytes)
        self._host = self._staging.numpy()
        self._on_device = torch.empty(capacity_bytes, dtype=torch.uint8, device=device)
        self._layout: list[tuple[str, str, int, int]] = []
        self._used = 0

    def pack(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write `arrays` (one dimension, int32, int64 or float32) into the staging buffer."""
        self._layout = []
        offset = 0
        for name, array in arrays.items():
            self._layout.append((name, array.dtype.char, offset, array.nbytes))
            offset += -(-array.nbytes // _ALIGN) * _ALIGN
        if offset > self._staging.numel():
            self._grow(offset)
        host = self._host
        for (_, _, start, size), array in zip(self._layout, arrays.values(), strict=True):
            host[start : start + size] = array.view(np.uint8)
        self._used = offset

    def transfer(self) -> "Transfer":
        """The copy as a thing of its own, to be run later in stream order."""
        return Transfer(self._staging[: self._used], self._on_device[: self._used], tuple(self._layout))

    def _grow(self, needed: int) -> None:
        """Rare, and only between steps: the device may still read the old buffer, so it is waited for."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        size = max(needed, 2 * self._staging.numel())
        self._staging = self._pinned(size)
        self._host = self._staging.numpy()
        self._on_device = torch.empty(size, dtype=torch.uint8, device=self._device)

    def _pinned(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8, pin_memory=self._device.type == "cuda")


class Transfer:
    """One prepared host-to-device copy."""

    def __init__(self, staging: Tensor, on_device: Tensor, layout: tuple[tuple[str, str, int, int], ...]) -> None:
        self._staging = staging
        self._on_device = on_device
        self._layout = layout

    def __call__(self) -> dict[str, Tensor]:
        """Copy, then name the parts."""
        self._on_device.copy_(self._staging, non_blocking=True)
        return {
            name: self._on_device[start : start + size].view(_DTYPES[dtype])
            for name, dtype, start, size in self._layout
        }
