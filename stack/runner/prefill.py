"""Prefill steps: several requests' chunks packed without gaps, first tokens sampled where a prompt ends.

T rows, R requests, F requests whose prompt ends in this step.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from stack.core.forward import ForwardContext
from stack.core.memory import ModelMemory
from stack.core.plan import PrefillRow, StepPlan
from stack.runner.slots import SlotTable
from stack.runner.speculator import PrefillBatch, Sampler, Speculator

if TYPE_CHECKING:
    from stack.models import Hidden, TargetModel


def prefill_arrays(rows: list[PrefillRow]) -> dict[str, np.ndarray]:
    """A prefill step's rows as arrays to pack."""
    lens_R = np.array([len(row.token_ids) for row in rows], dtype=np.int32)
    start_R = np.array([row.start for row in rows], dtype=np.int32)
    start_R1 = np.concatenate(([0], np.cumsum(lens_R))).astype(np.int32)
    request_T = np.repeat(np.arange(len(rows), dtype=np.int32), lens_R)
    position_T = np.arange(start_R1[-1], dtype=np.int32) + np.repeat(start_R - start_R1[:-1], lens_R)
    ends_F = np.array([i for i, row in enumerate(rows) if row.ends_prompt], dtype=np.int64)
    return {
        "token": np.concatenate([np.asarray(row.token_ids, dtype=np.int64) for row in rows]),
        "request": request_T,
        "position": position_T.astype(np.int32),
        "start": start_R1,
        "slot": np.array([row.slot for row in rows], dtype=np.int32),
        "end": start_R + lens_R,
        "next": np.array([max(row.next_token, 0) for row in rows], dtype=np.int64),
        "ending": ends_F,
    }


class PrefillSteps:
    """Runs the target over prompt chunks and commits how far each request came."""

    def __init__(
        self,
        model: "TargetModel",
        memory: ModelMemory,
        slots: SlotTable,
        sampler: Sampler,
        speculator: Speculator,
        *,
        page_size: int,
    ) -> None:
        self._model = model
        self._memory = memory
        self._slots = slots
        self._sampler = sampler
        self._speculator = speculator
        self._page_size = page_size

    def run(self, plan: StepPlan, packed: Mapping[str, Tensor]) -> Tensor:
        """int64 [F]: the first token of each request whose prompt ended, in the plan's order."""
        context = self._context(plan, packed)
        token_T = packed["token"]
        hidden = self._model.forward(token_T, context, self._memory, taps=self._speculator.taps)
        first_F = self._first_tokens(packed, context, hidden)
        next_R = packed["next"].index_copy(0, packed["ending"], first_F)
        batch = PrefillBatch(context=context, token_T=token_T, next_R=next_R, slots=self._slots)
        self._speculator.observe_prefill(batch, hidden, self._memory)
        self._slots.commit_prefill(context.slot_R, packed["end"])
        return first_F

    def _first_tokens(self, packed: Mapping[str, Tensor], context: ForwardContext, hidden: "Hidden") -> Tensor:
        ending_F = packed["ending"]
        if not ending_F.numel():
            return torch.zeros(0, dtype=torch.int64, device=ending_F.device)
        last_F = (context.start_R1[ending_F + 1] - 1).long()
        slot_F = context.slot_R[ending_F]
        logits_FV = self._model.logits(hidden.last_TC[last_F])
        first_F = self._sampler(logits_FV, slot_F, context.position_T[last_F] + 1)
        self._slots.commit_first(slot_F, first_F)
        return first_F

    def _context(self, plan: StepPlan, packed: Mapping[str, Tensor]) -> ForwardContext:
        slot_T = packed["slot"][packed["request"].long()]
        return ForwardContext(
            kind="prefill",
            width=0,
            max_context=plan.max_context,
            request_T=packed["request"],
            position_T=packed["position"],
            write_T=self._slots.token_slots(slot_T, packed["position"], self._page_size),
            start_R1=packed["start"],
            slot_R=packed["slot"],
            page_table_SP=self._slots.page_table_SP,
            extend_lens=tuple(len(row.token_ids) for row in plan.prefill),
            prefix_lens=tuple(row.start for row in plan.prefill),
        )
