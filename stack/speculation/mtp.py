"""Speculation with a chain of the model's own MTP layer.

What the drafter keeps for a slot: `r` and the first draft, left by the last committed entry, and that entry's index set
as *positions*, so that it means the same on another instance. A cycle:

1. draft: entries P .. P + K - 2 from (d1, r), each the next one's input; d1 is known already.
2. verify and accept (the runner and `Acceptance`).
3. commit: states fold; then the MTP layer runs again over the verify's rows with the target's own hiddens, so that
   committed entries never rest on guesses. Rows behind the last committed one leave entries that the next cycle writes
   again before anything reads them.

R requests, W rows of a verify (K + 1), K chained drafts, C channels, S slots, J selected tokens.
"""

from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from stack.core.forward import ForwardContext
from stack.core.memory import ModelMemory
from stack.models.mtp import MtpLayer
from stack.runner.slots import SlotTable
from stack.runner.speculator import DecodeBatch, PrefillBatch
from stack.speculation.accept import Proposal
from stack.speculation.acceptance import Acceptance
from stack.speculation.commit import StateCommit
from stack.speculation.index_positions import positions_of, token_slots_of

if TYPE_CHECKING:
    from stack.models import Hidden, TargetModel


class _Extras(msgspec.Struct, frozen=True):
    """What a decode instance needs to draft at once. `r` is FP32, `index` request positions."""

    r: list[float]
    draft: int
    index: list[int]


class MtpSpeculator:
    """Drafts `num_steps` tokens in a chain; a `Speculator` of the runner."""

    taps: tuple[int, ...] = ()

    def __init__(
        self,
        target: "TargetModel",
        layer: MtpLayer,
        memory: ModelMemory,
        acceptance: Acceptance,
        commit: StateCommit,
        *,
        num_slots: int,
        num_steps: int,
        page_size: int,
        num_pages: int,
        share_index: bool,
    ) -> None:
        device, geometry = target.embed_VC.device, target.geometry
        self.width = num_steps + 1
        self._target = target
        self._layer = layer
        self._memory = memory
        self._acceptance = acceptance
        self._commit = commit
        self._page_size = page_size
        self._num_pages = num_pages
        self._share_index = share_index
        self._r_SC = torch.zeros(num_slots, geometry.hidden_size, dtype=target.dtype, device=device)
        self._draft_S = torch.zeros(num_slots, dtype=torch.int64, device=device)
        index_width = -(-geometry.index_width // 64) * 64
        self._position_SJ = torch.full((num_slots, index_width), -1, dtype=torch.int32, device=device)

    def draft(self, batch: DecodeBatch) -> None:
        """Chain the drafts behind each pending token."""
        slot_R = batch.index_R
        table = batch.slots.page_table_SP
        batch.token_RW[:, 1] = self._draft_S[slot_R]
        r_RC = self._r_SC[slot_R]
        index_RJ = None
        if self._share_index:
            index_RJ = token_slots_of(self._position_SJ[slot_R], slot_R, table, self._page_size)
        for step in range(1, self.width - 1):
            context = self._chain_context(batch, step)
            r_RC, _ = self._layer.forward(batch.token_RW[:, step], r_RC, context, self._memory, index_RJ)
            batch.token_RW[:, step + 1] = torch.argmax(self._target.logits(r_RC), dim=-1)

    def accept(self, batch: DecodeBatch, logits_RWV: Tensor) -> None:
        """Drafts are arg maxes, so each is a point mass."""
        self._acceptance(batch, logits_RWV, Proposal(batch.token_RW[:, 1:]))

    def commit(self, batch: DecodeBatch, hidden: "Hidden", context: ForwardContext, memory: ModelMemory) -> None:
        """Fold states, then rebuild the committed entries from the target's hiddens."""
        self._commit(batch, context, memory)
        r_TC, index_TJ = self._layer.forward(batch.output_RW.view(-1), hidden.last_TC, context, memory)
        last_R = (batch.count_R.long() - 1).clamp_min(0)
        row_R = torch.arange(batch.slot_R.shape[0], device=last_R.device) * batch.width + last_R
        self._keep(batch.slots, batch.slot_R, r_TC[row_R], index_TJ[row_R])

    def observe_prefill(self, batch: PrefillBatch, hidden: "Hidden", memory: ModelMemory) -> None:
        """Run the layer over a chunk; each request's last entry takes the token behind the chunk."""
        context = batch.context
        last_R = context.start_R1[1:].long() - 1
        token_T = torch.roll(batch.token_T, -1).index_copy(0, last_R, batch.next_R)
        r_TC, index_TJ = self._layer.forward(token_T, hidden.last_TC, context, memory)
        self._keep(batch.slots, context.slot_R, r_TC[last_R], index_TJ[last_R])

    def slot_state(self, slot: int) -> list[Tensor]:
        """`r`, the first draft and the index set."""
        return [self._r_SC[slot], self._draft_S[slot : slot + 1], self._position_SJ[slot]]

    def export_extras(self, slot: int) -> bytes:
        """`r`, the first draft and the index set of a slot."""
        position_J = self._position_SJ[slot]
        return msgspec.msgpack.encode(
            _Extras(
                self._r_SC[slot].float().tolist(),
                int(self._draft_S[slot]),
                position_J[position_J >= 0].tolist(),
            )
        )

    def import_extras(self, slot: int, extras: bytes) -> None:
        """Take over what a prefill instance left; empty bytes leave a first cycle that accepts nothing."""
        self._position_SJ[slot] = -1
        if not extras:
            self._r_SC[slot] = 0
            self._draft_S[slot] = 0
            return
        found = msgspec.msgpack.decode(extras, type=_Extras)
        device = self._r_SC.device
        self._r_SC[slot] = _to(device, found.r, torch.float32).to(self._r_SC.dtype)
        self._draft_S[slot] = found.draft
        self._position_SJ[slot, : len(found.index)] = _to(device, found.index, torch.int32)

    def _keep(self, slots: SlotTable, slot_R: Tensor, r_RC: Tensor, index_RJ: Tensor) -> None:
        where_R = slot_R.long()
        self._r_SC.index_copy_(0, where_R, r_RC.to(self._r_SC.dtype))
        self._draft_S.index_copy_(0, where_R, torch.argmax(self._target.logits(r_RC), dim=-1))
        position_RJ = positions_of(index_RJ, where_R, slots.page_table_SP, self._page_size, self._num_pages)
        self._position_SJ.index_copy_(0, where_R, position_RJ)

    def _chain_context(self, batch: DecodeBatch, step: int) -> ForwardContext:
        """One row a request, at the position where draft number `step` would be entered."""
        position_R = (batch.position_RW[:, 0] + (step - 1)) * batch.live_R
        row_R1 = torch.arange(batch.slot_R.shape[0] + 1, dtype=torch.int32, device=batch.slot_R.device)
        return ForwardContext(
            kind="decode",
            width=1,
            max_context=batch.max_context,
            request_T=row_R1[:-1],
            position_T=position_R,
            write_T=batch.slots.token_slots(batch.index_R, position_R, self._page_size),
            start_R1=row_R1,
            slot_R=batch.slot_R,
            page_table_SP=batch.slots.page_table_SP,
        )


def _to(device: torch.device, values: list[float] | list[int], dtype: torch.dtype) -> Tensor:
    """From pinned memory, so that the host does not wait for the step under way."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)
