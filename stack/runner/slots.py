"""The device state of requests, one row a slot: what a running step changes and the host must not guess.

S slots, P pages a request may have. Slot 0 is the sink: its row stays zero, padding rows of a batch point at it.
`length` counts committed tokens (their cache entries and states exist); `pending` is the sampled token behind them,
which is in no cache yet. Only `commit_*` advances them; `initialise` sets a row when a request takes the slot.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from stack.core.plan import StepPlan


class SlotTable:
    """Slot-indexed tensors on the device."""

    def __init__(self, num_slots: int, pages_per_request: int, device: torch.device) -> None:
        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros((num_slots, *shape), dtype=dtype, device=device)

        self.page_table_SP = zeros(torch.int32, pages_per_request)
        self.length_S = zeros(torch.int32)
        self.pending_S = zeros(torch.int64)
        self.generated_S = zeros(torch.int32)
        self.limit_S = zeros(torch.int32)
        self.seed_S = zeros(torch.int64)
        self.temperature_S = zeros(torch.float32)
        self.top_k_S = zeros(torch.int32)
        self.top_p_S = zeros(torch.float32)
        self.min_p_S = zeros(torch.float32)

    def update(self, packed: Mapping[str, Tensor]) -> None:
        """Apply the initialisations and page-table entries of a step; what the step lacks costs nothing."""
        if "init_slot" in packed:
            self._initialise(packed)
        if "entry_slot" in packed:
            where = (packed["entry_slot"].long(), packed["entry_index"].long())
            self.page_table_SP.index_put_(where, packed["entry_page"])

    def _initialise(self, packed: Mapping[str, Tensor]) -> None:
        slot_I = packed["init_slot"].long()
        self.page_table_SP.index_fill_(0, slot_I, 0)
        for name in ("length", "pending", "generated", "limit", "seed", "temperature", "top_k", "top_p", "min_p"):
            getattr(self, f"{name}_S").index_copy_(0, slot_I, packed[f"init_{name}"])

    def token_slots(self, slot_T: Tensor, position_T: Tensor, page_size: int) -> Tensor:
        """int64 [T]: where the cache entries of the token at each position go. `page_size` is a power of two.

        Rows of the sink (slot 0, whose pages are 0) have position 0, so they go to 0."""
        position_T = position_T.long()
        entry_T = (position_T >> (page_size.bit_length() - 1)).add_(slot_T, alpha=self.page_table_SP.shape[1])
        page_T = self.page_table_SP.view(-1).index_select(0, entry_T)
        return (position_T & (page_size - 1)).add_(page_T, alpha=page_size)

    def commit_prefill(self, slot_R: Tensor, end_R: Tensor) -> None:
        """The requests' prompts are computed up to `end_R`."""
        self.length_S.index_copy_(0, slot_R.long(), end_R)

    def commit_first(self, slot_F: Tensor, token_F: Tensor) -> None:
        """The first sampled tokens of prompts that ended."""
        self.pending_S.index_copy_(0, slot_F.long(), token_F)
        self.generated_S.index_fill_(0, slot_F.long(), 1)

    def commit_decode(self, index_R: Tensor, count_R: Tensor, pending_R: Tensor) -> None:
        """Advance the slots `index_R` (int64) by `count_R` tokens; rows with a count of 0 (padding, requests at their
        limit) stay as they are."""
        self.length_S.index_add_(0, index_R, count_R)
        self.generated_S.index_add_(0, index_R, count_R)
        kept_R = self.pending_S.index_select(0, index_R)
        self.pending_S.index_copy_(0, index_R, torch.where(count_R > 0, pending_R, kept_R))


_INIT_DTYPES = {
    "slot": np.int32,
    "length": np.int32,
    "pending": np.int64,
    "generated": np.int32,
    "limit": np.int32,
    "seed": np.int64,
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
}


def slot_arrays(plan: StepPlan) -> dict[str, np.ndarray]:
    """The part of a plan that `SlotTable.update` reads, as arrays to pack."""
    arrays: dict[str, np.ndarray] = {}
    if plan.inits:
        for name, dtype in _INIT_DTYPES.items():
            arrays[f"init_{name}"] = np.array([getattr(init, name) for init in plan.inits], dtype=dtype)
    if plan.entries.pages:
        arrays["entry_slot"] = np.array(plan.entries.slots, dtype=np.int32)
        arrays["entry_index"] = np.array(plan.entries.indices, dtype=np.int32)
        arrays["entry_page"] = np.array(plan.entries.pages, dtype=np.int32)
    return arrays
