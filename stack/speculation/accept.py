"""Which drafted tokens a verify keeps. Device tensors in, device tensors out; never waits for the device.

Row 0 of a verify is the pending token, rows 1 .. W-1 the drafts; row j's logits predict what follows row j. A verify
commits n = a + 1 tokens: the a accepted drafts and one bonus token, the next pending one. `tokens_BW` holds them first.

* greedy: the longest prefix of drafts that equals the arg max, so the text is that of plain decoding;
* sampled: rejection sampling (Leviathan et al. 2023): a draft from q is kept with probability min(1, p / q), else the
  token is drawn from the normalised (p - q)+; the text's distribution is that of plain sampling. A draft that was not
  drawn (an arg max) is a point mass: q = 1 there;
* forced: n is drawn with a given mean whatever the target says. For random weights, and always recorded as forced.

B requests, W rows, E = W - 1 drafts, V vocabulary, K candidates of a drafted slot.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

COIN_STREAM, RESIDUAL_STREAM, FORCE_STREAM, PROPOSAL_STREAM = 1, 2, 3, 4
"""Streams of a request's random numbers; 0 is plain sampling's."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """`count_B` int32 in 1 .. W tokens are committed; the first of `tokens_BW` int32, 0 beyond."""

    count_B: Tensor
    tokens_BW: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSampling:
    """Sampling parameters of each request, and the position of its pending token."""

    temperature_B: Tensor
    top_k_B: Tensor
    top_p_B: Tensor
    min_p_B: Tensor
    seed_B: Tensor
    position_B: Tensor


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts [B, E]; where they were drawn, the candidates and their probabilities [B, E, K]."""

    token_BE: Tensor
    ids_BEK: Tensor | None = None
    q_BEK: Tensor | None = None


def accept_greedy(logits_BWV: Tensor, draft_BE: Tensor) -> Accepted:
    """Keep the longest prefix of drafts that equals the arg max (lowest id on ties)."""
    best_BW = torch.argmax(logits_BWV, dim=-1)
    kept_BE = torch.cumprod((draft_BE == best_BW[:, :-1]).to(torch.int32), dim=1)
    return _committed(draft_BE, kept_BE.sum(dim=1), best_BW)


def accept_forced(logits_BWV: Tensor, draft_BE: Tensor, mean: float, uniform_B: Tensor) -> Accepted:
    """Commit floor(mean) tokens, or one more with the remaining probability; `uniform_B` in [0, 1) decides."""
    whole = int(mean)
    accepted_B = (whole - 1) + (uniform_B < mean - whole).to(torch.int64)
    return _committed(draft_BE, accepted_B, torch.argmax(logits_BWV, dim=-1))


def accept_sampled(
    logits_BWV: Tensor,
    proposal: Proposal,
    sampling: RowSampling,
    filtered_probs: Callable[..., Tensor],
    uniforms: Callable[..., Tensor],
) -> Accepted:
    """Rejection sampling for rows with a temperature; greedy rows (temperature 0) come out as `accept_greedy` has them.

    `filtered_probs` and `uniforms` are the op `sample`'s functions. Row j's coin and residual draw belong to position
    `position_B + j`, so they do not depend on the batch.
    """
    batch, width, vocab = logits_BWV.shape
    p_BWV = _target_probs(logits_BWV, sampling, filtered_probs)
    q_BEV = _draft_probs(proposal, vocab)
    coin_BE = _draws(uniforms, sampling, width - 1, COIN_STREAM)
    index = proposal.token_BE.long()[..., None]
    p_BE, q_BE = (probs.gather(2, index)[..., 0] for probs in (p_BWV[:, :-1], q_BEV))
    kept_BE = torch.cumprod((coin_BE * q_BE < p_BE).to(torch.int32), dim=1)
    accepted_B = kept_BE.sum(dim=1)

    residual_BWV = torch.cat([(p_BWV[:, :-1] - q_BEV).clamp(min=0), p_BWV[:, -1:]], dim=1)
    chosen_BV = residual_BWV.gather(1, accepted_B.long()[:, None, None].expand(batch, 1, vocab))[:, 0]
    total_BV = torch.cumsum(chosen_BV, dim=1)
    draw_BW = _draws(uniforms, sampling, width, RESIDUAL_STREAM)
    draw_B = draw_BW.gather(1, accepted_B.long()[:, None])
    bonus_B = (total_BV <= draw_B * total_BV[:, -1:]).sum(dim=1).clamp(max=vocab - 1)

    sampled = _committed(proposal.token_BE, accepted_B, bonus_B[:, None].expand(batch, width))
    greedy = accept_greedy(logits_BWV, proposal.token_BE)
    is_greedy = sampling.temperature_B == 0
    return Accepted(
        torch.where(is_greedy, greedy.count_B, sampled.count_B),
        torch.where(is_greedy[:, None], greedy.tokens_BW, sampled.tokens_BW),
    )


def _target_probs(logits_BWV: Tensor, sampling: RowSampling, filtered_probs: Callable[..., Tensor]) -> Tensor:
    batch, width, vocab = logits_BWV.shape
    parameters = (sampling.temperature_B, sampling.top_k_B, sampling.top_p_B, sampling.min_p_B)
    rows = (parameter.repeat_interleave(width) for parameter in parameters)
    return filtered_probs(logits_BWV.reshape(batch * width, vocab), *rows).view(batch, width, vocab)


def _draft_probs(proposal: Proposal, vocab: int) -> Tensor:
    batch, drafts = proposal.token_BE.shape
    q_BEV = torch.zeros(batch, drafts, vocab, device=proposal.token_BE.device)
    if proposal.q_BEK is None or proposal.ids_BEK is None:
        return q_BEV.scatter_(2, proposal.token_BE.long()[..., None], 1.0)
    return q_BEV.scatter_add_(2, proposal.ids_BEK.long(), proposal.q_BEK)


def _draws(uniforms: Callable[..., Tensor], sampling: RowSampling, rows: int, stream: int) -> Tensor:
    step = torch.arange(rows, device=sampling.position_B.device, dtype=sampling.position_B.dtype)
    position_BW = sampling.position_B[:, None] + step
    seed_BW = sampling.seed_B[:, None].expand_as(position_BW)
    return uniforms(seed_BW.reshape(-1), position_BW.reshape(-1), stream).view_as(position_BW)


def _committed(draft_BE: Tensor, accepted_B: Tensor, bonus_BW: Tensor) -> Accepted:
    """The accepted drafts, then `bonus_BW` at the row where acceptance ended, then zeros."""
    batch, width = bonus_BW.shape
    row_W = torch.arange(width, device=draft_BE.device)
    padded_BW = torch.cat([draft_BE.long(), draft_BE.new_zeros(batch, 1, dtype=torch.int64)], dim=1)
    end_B = accepted_B.long()[:, None]
    tokens_BW = torch.where(row_W < end_B, padded_BW, torch.where(row_W == end_B, bonus_BW.long(), 0))
    return Accepted((accepted_B + 1).to(torch.int32), tokens_BW.to(torch.int32))
