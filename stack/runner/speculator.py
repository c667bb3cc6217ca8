"""The seam between a decode step and how it guesses ahead.

A decode step is draft, verify, accept, commit over one `DecodeBatch`. The runner owns verify (the target's forward) and
the slot table; a speculator owns the rest. All four work on the batch's static buffers, read nothing on the host and
never wait for the device, so that each can be captured in a graph.

R requests including padding (slot 0), W rows a request, S slots, V vocabulary.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from stack.core.forward import ForwardContext
from stack.core.memory import ModelMemory
from stack.runner.slots import SlotTable

if TYPE_CHECKING:
    from stack.models import Hidden


@dataclass(slots=True, kw_only=True)
class DecodeBatch:
    """Static buffers of one bucket. The runner fills the first group before `draft`, the phases fill the second."""

    slots: SlotTable
    slot_R: Tensor
    """int32: slot of each request, 0 for padding."""
    index_R: Tensor
    """int64: the same, as what PyTorch indexes with."""
    live_R: Tensor
    """int32: 1 for requests, 0 for padding."""
    max_context: int
    """Host bound of the tokens any row sees, this step's included."""
    all_greedy: bool
    """Host fact: every request takes arg maxes, so no phase needs probabilities."""

    token_RW: Tensor
    """int64: column 0 is the pending token (set by the runner), the others are the drafts (`draft` sets them)."""
    position_RW: Tensor
    """int32: positions of the rows; 0 for padding."""
    count_R: Tensor
    """int32: committed tokens of each request, 0 .. W (`accept` sets it; 0 for padding and at the limit)."""
    output_RW: Tensor
    """int64: the new tokens; the first `count_R` are valid and the last of them becomes pending."""

    @property
    def size(self) -> int:
        """Requests, padding included."""
        return int(self.token_RW.shape[0])

    @property
    def width(self) -> int:
        """Rows a request."""
        return int(self.token_RW.shape[1])


@dataclass(slots=True, kw_only=True)
class PrefillBatch:
    """What a drafter may learn from a prefill step, after the target's forward and its sampling."""

    context: ForwardContext
    token_T: Tensor
    """int64: the step's prompt tokens."""
    next_R: Tensor
    """int64: the token behind each request's chunk: the next prompt token, or the sampled one where the prompt ends."""
    slots: SlotTable


class Speculator(Protocol):
    """How a decode step guesses. One instance a worker; its own device state is indexed by slot."""

    width: int
    """Rows of a request in one decode step."""
    taps: tuple[int, ...]
    """Target layers whose outputs it needs in `Hidden.tap_TF`."""

    def draft(self, batch: DecodeBatch) -> None:
        """Set `batch.token_RW[:, 1:]`."""
        ...

    def accept(self, batch: DecodeBatch, logits_RWV: Tensor) -> None:
        """Set `batch.count_R` (before the limit is applied) and `batch.output_RW`."""
        ...

    def commit(self, batch: DecodeBatch, hidden: "Hidden", context: ForwardContext, memory: ModelMemory) -> None:
        """Advance states by `batch.count_R` and the drafter's own caches. Runs before the slot table moves on."""
        ...

    def observe_prefill(self, batch: PrefillBatch, hidden: "Hidden", memory: ModelMemory) -> None:
        """Fill the drafter's caches for a prefill step's rows."""
        ...

    def slot_state(self, slot: int) -> list[Tensor]:
        """Views of what it keeps for a slot outside the pools; they follow a request that is swapped out and back."""
        ...

    def export_extras(self, slot: int) -> bytes:
        """What a decode instance needs besides pages and slot to draft at once. The slot's last step was collected."""
        ...

    def import_extras(self, slot: int, extras: bytes) -> None:
        """The other end of `export_extras`, in stream order; empty bytes mean a first cycle without drafts."""
        ...


@dataclass(slots=True)
class Sampler:
    """The op `sample` bound to the slot table: tokens from logits by each slot's parameters."""

    slots: SlotTable
    sample: "SampleOp"
    uniforms: "UniformOp"
    stream: int = field(default=0)
    """Which of a request's random streams the draws come from."""

    def __call__(self, logits_NV: Tensor, slot_N: Tensor, position_N: Tensor) -> Tensor:
        """int64 [N]: the token at `position_N` of each row's request."""
        slot_N = slot_N.long()
        table = self.slots
        uniform_N = self.uniforms(table.seed_S[slot_N], position_N, self.stream)
        token_N = self.sample(
            logits_NV,
            table.temperature_S[slot_N],
            table.top_k_S[slot_N],
            table.top_p_S[slot_N],
            table.min_p_S[slot_N],
            uniform_N,
        )
        return token_N.long()


class SampleOp(Protocol):
    """The op `sample` of `stack.kernels.sample`."""

    def __call__(
        self, logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor, /
    ) -> Tensor:
        """Tokens of rows."""
        ...


class UniformOp(Protocol):
    """The function `uniforms` of the same module."""

    def __call__(self, seed: Tensor, position: Tensor, stream: int, /) -> Tensor:
        """One number in [0, 1) a row."""
        ...


class PlainDecoder:
    """No speculation: one row, one sampled token. States advance inside the forward, so commit has nothing to do."""

    width = 1
    taps: tuple[int, ...] = ()

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def draft(self, batch: DecodeBatch) -> None:
        """Nothing to guess."""

    def accept(self, batch: DecodeBatch, logits_RWV: Tensor) -> None:
        """Sample the token behind the pending one."""
        if batch.all_greedy:
            torch.argmax(logits_RWV[:, 0], dim=-1, out=batch.output_RW[:, 0])
        else:
            batch.output_RW[:, 0] = self._sampler(logits_RWV[:, 0], batch.slot_R, batch.position_RW[:, 0] + 1)
        batch.count_R.fill_(1)

    def commit(self, batch: DecodeBatch, hidden: "Hidden", context: ForwardContext, memory: ModelMemory) -> None:
        """States moved in the forward."""

    def observe_prefill(self, batch: PrefillBatch, hidden: "Hidden", memory: ModelMemory) -> None:
        """Nothing to learn."""

    def slot_state(self, slot: int) -> list[Tensor]:
        """Nothing."""
        return []

    def export_extras(self, slot: int) -> bytes:
        """Nothing."""
        return b""

    def import_extras(self, slot: int, extras: bytes) -> None:
        """Nothing."""


__all__ = ["DecodeBatch", "PlainDecoder", "PrefillBatch", "Sampler", "Speculator"]
