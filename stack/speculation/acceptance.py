"""Acceptance of one decode batch by the slot table's parameters: greedy, sampled or forced, chosen when it is built.

Knows nothing of drafters beyond the `Proposal` they leave. A batch whose requests are all greedy skips the
probabilities; the host knows that, so nothing waits for the device.
"""

from collections.abc import Callable

from torch import Tensor

from stack.kernels import BoundOp
from stack.runner.speculator import DecodeBatch
from stack.speculation.accept import (
    FORCE_STREAM,
    Accepted,
    Proposal,
    RowSampling,
    accept_forced,
    accept_greedy,
    accept_sampled,
)


class Acceptance:
    """Sets `count_R` and `output_RW` of a batch. `forced_mean` replaces the comparison with the target."""

    def __init__(self, sample: BoundOp, forced_mean: float | None) -> None:
        self._filtered_probs: Callable[..., Tensor] = sample.function("filtered_probs")
        self._uniforms: Callable[..., Tensor] = sample.function("uniforms")
        self._forced_mean = forced_mean

    def __call__(self, batch: DecodeBatch, logits_RWV: Tensor, proposal: Proposal) -> None:
        """Decide which rows of the verify stay."""
        accepted = self._decide(batch, logits_RWV, proposal)
        batch.count_R.copy_(accepted.count_B)
        batch.output_RW.copy_(accepted.tokens_BW)

    def _decide(self, batch: DecodeBatch, logits_RWV: Tensor, proposal: Proposal) -> Accepted:
        if self._forced_mean is not None:
            seed_B = batch.slots.seed_S.index_select(0, batch.index_R)
            uniform_B = self._uniforms(seed_B, batch.position_RW[:, 0] + 1, FORCE_STREAM)
            return accept_forced(logits_RWV, proposal.token_BE, self._forced_mean, uniform_B)
        if batch.all_greedy:
            return accept_greedy(logits_RWV, proposal.token_BE)
        return accept_sampled(logits_RWV, proposal, row_sampling(batch), self._filtered_probs, self._uniforms)


def row_sampling(batch: DecodeBatch) -> RowSampling:
    """The sampling parameters of a batch's requests; top_k of 1 counts as greedy."""
    table, slot_R = batch.slots, batch.index_R
    top_k_B = table.top_k_S[slot_R]
    return RowSampling(
        temperature_B=table.temperature_S[slot_R] * (top_k_B != 1),
        top_k_B=top_k_B,
        top_p_B=table.top_p_S[slot_R],
        min_p_B=table.min_p_S[slot_R],
        seed_B=table.seed_S[slot_R],
        position_B=batch.position_RW[:, 0] + 1,
    )
