"""What one forward pass is given: who its rows are and where their memory lies. Owns no memory and reads no tensor.

T rows of this pass, packed without gaps and padded at the end to a bucket; R requests; S state slots (slot 0 is the
sink); P pages a request may have. Rows of one request are neighbours, in position order.

Every per-request table is indexed by *slot*, because slots own the device state: row t belongs to request
`request_T[t]`, that request's slot is `slot_R[r]`, its pages are `page_table_SP[slot]`. Padding rows point at request
R - 1 when R was padded, or carry slot 0, page 0 and write position 0: they read zeros and write to the sink.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

StepKind = Literal["prefill", "decode", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardContext:
    """One step's rows.

    `prefill`: request r brings `extend_lens[r]` new tokens behind `prefix_lens[r]` cached ones; recurrent and
    convolution states advance in place. `decode`: one row a request, states advance in place. `verify`: `width` rows a
    request, committed states stay untouched and replay inputs are kept; a later commit folds the accepted ones.
    """

    kind: StepKind
    width: int
    """Rows of each request in decode (1) and verify; 0 in prefill, where `extend_lens` has them."""
    max_context: int
    """Upper bound, known to the host, of the tokens any row sees (itself included): sizes index workspaces."""
    request_T: "Tensor"
    """int32 [T]: request of each row."""
    position_T: "Tensor"
    """int32 [T]: position of each row in its request, from 0."""
    write_T: "Tensor"
    """int64 [T]: token slot (page * page_size + offset) that the row's cache entries go to; 0 for padding."""
    start_R1: "Tensor"
    """int32 [R + 1]: first row of each request, then the number of real rows."""
    slot_R: "Tensor"
    """int32 [R]: state slot of each request; 0 for padding."""
    page_table_SP: "Tensor"
    """int32 [S, P]: pages of each slot in order; 0 beyond its end."""
    ring_R: "Tensor | None" = None
    """Decode and verify: int32 [R], the replay-ring entry of each request; 0 (the sink) for padding."""
    extend_lens: tuple[int, ...] = ()
    """Prefill only: new tokens of each request, on the host."""
    prefix_lens: tuple[int, ...] = ()
    """Prefill only: tokens of each request that were computed before this pass, on the host."""

    @property
    def num_rows(self) -> int:
        """Rows including padding."""
        return int(self.position_T.shape[0])

    @property
    def num_requests(self) -> int:
        """Requests including padding."""
        return int(self.slot_R.shape[0])
