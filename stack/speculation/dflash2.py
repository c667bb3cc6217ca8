"""Speculation with a DFlash2 draft: one block forward a cycle, context rows from the target's own features.

The draft's rows depend on features of committed tokens alone. With the ring they are part of a request's slot, so they
travel, swap and come back from a snapshot with the state; with `draft_kv: full` they lie in the pages and are shared
like them. Either way nothing else belongs to a hand-off.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stack.core.forward import ForwardContext
from stack.core.memory import ModelMemory
from stack.kernels import BoundOp
from stack.models.dflash2 import DFlash2Draft
from stack.models.draft_context import DraftContext
from stack.runner.speculator import DecodeBatch, PrefillBatch
from stack.speculation.accept import PROPOSAL_STREAM, Proposal
from stack.speculation.acceptance import Acceptance, row_sampling
from stack.speculation.commit import StateCommit

if TYPE_CHECKING:
    from stack.models import Hidden


class DFlash2Speculator:
    """Drafts `width - 1` tokens in one forward; a `Speculator` of the runner."""

    def __init__(
        self,
        draft: DFlash2Draft,
        context: DraftContext,
        acceptance: Acceptance,
        commit: StateCommit,
        sample: BoundOp,
    ) -> None:
        self.width = draft.geometry.block_size
        self.taps = draft.geometry.target_layer_ids
        self._draft = draft
        self._context = context
        self._acceptance = acceptance
        self._commit = commit
        self._uniforms = sample.function("uniforms")
        self._proposals: dict[int, Proposal] = {}

    def draft(self, batch: DecodeBatch) -> None:
        """Guess the tokens behind each pending one."""
        length_R = batch.position_RW[:, 0]
        rows = self._context.read(batch.slot_R, length_R, batch.slots.page_table_SP)
        sampling = row_sampling(batch)
        position_RE = batch.position_RW[:, 1:]
        seed_RE = sampling.seed_B[:, None].expand_as(position_RE)
        uniform_RE = self._uniforms(seed_RE.reshape(-1), position_RE.reshape(-1), PROPOSAL_STREAM)
        drafts = self._draft.draft(
            batch.token_RW[:, 0], length_R, rows, sampling.temperature_B, uniform_RE.view(position_RE.shape)
        )
        batch.token_RW[:, 1:] = drafts.token_BE
        self._proposals[int(batch.slot_R.shape[0])] = Proposal(drafts.token_BE, drafts.ids_BEK, drafts.q_BEK)

    def accept(self, batch: DecodeBatch, logits_RWV: Tensor) -> None:
        """Compare with the target, or draw where acceptance is forced."""
        self._acceptance(batch, logits_RWV, self._proposals[int(batch.slot_R.shape[0])])

    def commit(self, batch: DecodeBatch, hidden: "Hidden", context: ForwardContext, memory: ModelMemory) -> None:
        """Fold states; keep context rows of the committed tokens and of no other."""
        self._commit(batch, context, memory)
        row_W = torch.arange(batch.width, device=batch.slot_R.device)
        keep_T = (row_W < batch.count_R[:, None]).view(-1)
        slot_T = batch.slot_R.repeat_interleave(batch.width)
        self._keep(hidden, slot_T, context.position_T, keep_T, context.page_table_SP)

    def observe_prefill(self, batch: PrefillBatch, hidden: "Hidden", memory: ModelMemory) -> None:
        """Project a chunk's rows that a block may still see: with a ring, the last window of each request."""
        context = batch.context
        slot_T = context.slot_R[context.request_T.long()]
        assert hidden.tap_TF is not None
        rows = self._rows_in_sight(context)
        taps_TF, position_T, slot_T = (
            x if rows is None else x[rows] for x in (hidden.tap_TF, context.position_T, slot_T)
        )
        self._context.write(
            self._draft.context_rows(taps_TF, position_T), slot_T, position_T, slot_T > 0, context.page_table_SP
        )

    def slot_state(self, slot: int) -> list[Tensor]:
        """Nothing: the rows are in the pools."""
        return []

    def export_extras(self, slot: int) -> bytes:
        """Nothing: the rows travel with the slot or the pages."""
        return b""

    def import_extras(self, slot: int, extras: bytes) -> None:
        """Nothing."""

    def _rows_in_sight(self, context: ForwardContext) -> Tensor | None:
        window = self._context.window
        if self._context.kind == "full" or all(length <= window for length in context.extend_lens):
            return None
        spans, start = [], 0
        for length in context.extend_lens:
            spans.append(torch.arange(start + max(length - window, 0), start + length, device=context.slot_R.device))
            start += length
        return torch.cat(spans)

    def _keep(
        self, hidden: "Hidden", slot_T: Tensor, position_T: Tensor, keep_T: Tensor, page_table_SP: Tensor
    ) -> None:
        assert hidden.tap_TF is not None
        rows = self._draft.context_rows(hidden.tap_TF, position_T)
        self._context.write(rows, slot_T, position_T, keep_T & (slot_T > 0), page_table_SP)
