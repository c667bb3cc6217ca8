"""Memory that a peer may write to, as numbers: equal items in one contiguous run of bytes.

Knows nothing of what an item holds; a page and a state slot are alike here. The numbers travel to the peer, so nothing
in them is a Python object of this process. Whoever makes a `Spans` keeps the memory alive.
"""

from typing import TYPE_CHECKING, Literal

import msgspec

from stack.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class Spans(msgspec.Struct, frozen=True, kw_only=True):
    """`count` items of `item_bytes` each, back to back from address `base`."""

    base: int
    item_bytes: int
    count: int
    kind: Literal["DRAM", "VRAM"] = "DRAM"
    device_id: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole run."""
        return self.item_bytes * self.count

    def holds(self, ids: list[int]) -> bool:
        """Whether every id names an item of this run."""
        return all(0 <= i < self.count for i in ids)

    @classmethod
    def of_tensor(cls, tensor: "Tensor") -> "Spans":
        """One item for each index of the first dimension. Raises ConfigError when the tensor is not contiguous."""
        if not tensor.is_contiguous() or tensor.dim() < 2:
            raise ConfigError("a pool must be one contiguous tensor with its items along the first dimension")
        on_device = tensor.device.type == "cuda"
        return cls(
            base=tensor.data_ptr(),
            item_bytes=tensor[0].numel() * tensor.element_size(),
            count=tensor.shape[0],
            kind="VRAM" if on_device else "DRAM",
            device_id=(tensor.device.index or 0) if on_device else 0,
        )


class Pools(msgspec.Struct, frozen=True, kw_only=True):
    """Both pools of an instance. Field names are the names by which a write says where it goes."""

    pages: Spans
    slots: Spans

    def mismatch(self, other: "Pools", *, here: str = "here", there: str = "there") -> str:
        """Empty when items have equal sizes on both sides, else a sentence that names both."""
        for name in ("pages", "slots"):
            ours, theirs = getattr(self, name).item_bytes, getattr(other, name).item_bytes
            if ours != theirs:
                return f"{name} hold {ours} bytes {here} and {theirs} bytes {there}"
        return ""
