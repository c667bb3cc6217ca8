"""What one step does, in integers: the scheduler writes it, the runner turns it into one packed copy and one forward.

A plan never holds a length that a running step will produce; decode rows are slots, and the device knows how far each
is. `max_context` is an upper bound. Within a plan the order is: swap-outs, swap-ins, restores, slot initialisation,
page-table entries, the forward, snapshots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

PlanKind = Literal["prefill", "decode", "memory"]


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """Prompt tokens `start .. start + len(token_ids)` of the request in `slot`."""

    slot: int
    start: int
    token_ids: "Sequence[int] | np.ndarray"
    """A view of the prompt, 32 bits a token."""
    next_token: int
    """The prompt token behind this chunk, or -1 when the prompt ends here and a token is sampled."""

    @property
    def ends_prompt(self) -> bool:
        """Whether this chunk samples the first token."""
        return self.next_token < 0

    @property
    def end(self) -> int:
        """Tokens of the request that are computed after this step."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class SlotInit:
    """First values of a slot's device state; its page-table row is cleared too."""

    slot: int
    length: int
    pending: int
    generated: int
    limit: int
    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float


@dataclass(frozen=True, slots=True)
class Swap:
    """Pages and the state slot of one request, out to pinned host memory or back; `ticket` names the bytes there.

    `indices[i]` is the place of `pages[i]` in the request. What comes back may be fewer pages than went out.
    """

    ticket: int
    slot: int
    indices: list[int]
    pages: list[int]


@dataclass(slots=True)
class PageEntries:
    """New page-table entries: `table[slots[i], indices[i]] = pages[i]`."""

    slots: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)

    def extend(self, slot: int, first_index: int, pages: list[int]) -> None:
        """Add `pages` of `slot` from `first_index` on."""
        count = len(pages)
        self.slots.extend([slot] * count)
        self.indices.extend(range(first_index, first_index + count))
        self.pages.extend(pages)

    def __len__(self) -> int:
        return len(self.pages)


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """One step. `prefill` rows or `decode_slots`, never both; kind `memory` has neither and only moves bytes."""

    step: int
    kind: PlanKind
    prefill: list[PrefillRow] = field(default_factory=list)
    decode_slots: list[int] = field(default_factory=list)
    all_greedy: bool = False
    """Every decoding request takes arg maxes, so nothing needs probabilities."""
    max_context: int = 0
    """Upper bound of the tokens that any row sees, itself included."""
    entries: PageEntries = field(default_factory=PageEntries)
    inits: list[SlotInit] = field(default_factory=list)
    restores: list[tuple[int, int]] = field(default_factory=list)
    """(snapshot slot, request slot): copied before the forward."""
    snapshots: list[tuple[int, int]] = field(default_factory=list)
    """(request slot, snapshot slot): copied after the forward."""
    swap_outs: list[Swap] = field(default_factory=list)
    swap_ins: list[Swap] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)
    """Tickets whose swapped bytes nobody will ask for again."""

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of a prefill step, requests of a decode step."""
        return sum(len(row.token_ids) for row in self.prefill) + len(self.decode_slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step produced, collected after the device was done with it."""

    step: int
    tokens: list[list[int]]
    """For each prefill row (empty unless it ends its prompt) or each decode slot, in the plan's order."""
    device_s: float
    """Seconds from the start to the end of the step on the device."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Seconds of its parts where they were timed."""
