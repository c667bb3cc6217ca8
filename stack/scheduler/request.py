"""One request from arrival to its last token, as the scheduler sees it. Integers and token ids; no tensors, no HTTP.

What a running step produces is not here until that step's results were collected: `output` and `num_computed` are what
the host may act on, `num_inflight` says how many launched steps may still touch the request's memory.
"""

import enum
from dataclasses import dataclass, field

import numpy as np

from stack.cache.keys import PageKeys
from stack.cache.lease import Lease
from stack.core.messages import Bootstrap
from stack.core.sampling import SamplingParams


class Phase(enum.Enum):
    """Where a request is. Prefill may go back to QUEUED by way of YIELDING, and SWAPPED to RUNNING."""

    QUEUED = "queued"
    RECEIVING = "receiving"
    """Decode instance: holds pages and a slot, its cache is on the way."""
    ARRIVED = "arrived"
    """Decode instance: its cache is here, it waits for a place in the running batch."""
    PREFILLING = "prefilling"
    YIELDING = "yielding"
    """Gave way during prefill: is queued again once its last launched step was collected."""
    RUNNING = "running"
    SWAPPED = "swapped"
    SENDING = "sending"
    """Prefill instance: computed, its memory is being read by a transfer."""
    FINISHED = "finished"


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """A request's host state. Only the scheduler writes it."""

    rid: str
    prompt: np.ndarray
    """Token ids, 32 bits each."""
    sampling: SamplingParams
    arrival_s: float
    deadline_s: float
    keys: PageKeys
    """Names of its whole pages, for the prefix cache."""
    bootstrap: Bootstrap | None = None
    end_tokens: frozenset[int] = frozenset()
    """Tokens that end the text: the model's own unless ignored, and those the client named."""

    num_prompt: int = 0
    """Prompt tokens. This and the next two are fields because every step reads them for every request."""
    limit: int = 0
    """Most tokens it may generate."""
    is_greedy: bool = False
    phase: Phase = Phase.QUEUED
    lease: Lease | None = None
    """Its pages and slots, None while it has none."""
    num_computed: int = 0
    """Prompt tokens whose step was launched or that were found in a cache."""
    num_cached: int = 0
    """Prompt tokens that were found in a cache, for the usage report."""
    output: list[int] = field(default_factory=list)
    """Generated tokens that were collected."""
    num_inflight: int = 0
    """Launched steps with this request that were not collected."""
    is_held: bool = False
    """A transfer may still read or write its pages and slot."""
    num_verify: int = 0
    num_accepted_drafts: int = 0
    num_swaps: int = 0
    num_requeues: int = 0
    ticket: int = 0
    """Names its bytes in the swap space while SWAPPED."""
    swap_bytes: int = 0
    """Host memory set aside for it while SWAPPED."""
    transfer: dict[str, float] = field(default_factory=dict)
    """What moving its cache took, for `timing` of the last message."""
    started_s: float = 0.0
    """Clock at the moments that `timing` of the last message is made of; 0 before each."""
    prefilled_s: float = 0.0
    arrived_s: float = 0.0
    finished_s: float = 0.0

    def __post_init__(self) -> None:
        self.num_prompt = len(self.prompt)
        self.limit = self.sampling.max_new_tokens
        self.is_greedy = self.sampling.is_greedy

    def __repr__(self) -> str:
        held = f"slot {self.slot}, {len(self.pages)} pages" + (", held" if self.is_held else "")
        counts = f"{self.num_computed}/{self.num_prompt} + {len(self.output)}/{self.limit}"
        return f"<{self.rid} {self.phase.value} {counts}, {held}, {self.num_inflight} under way>"

    @property
    def slot(self) -> int:
        """State slot, 0 while it has none."""
        return self.lease.slots[0] if self.lease and self.lease.slots else 0

    @property
    def pages(self) -> list[int]:
        """Pages in order, shared ones first."""
        return self.lease.pages if self.lease else []

    @property
    def length(self) -> int:
        """Committed tokens that the host knows of: prompt and output without the pending token."""
        return self.num_prompt + max(len(self.output) - 1, 0)

    @property
    def is_finished(self) -> bool:
        """Whether its last message is out; its memory may still wait for a step or a transfer."""
        return self.phase is Phase.FINISHED
