"""Watches what drafters guess, and may put known text in its place, so that every accepted length occurs."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from stack.runner.speculator import DecodeBatch
from stack.speculation.accept import Proposal
from stack.speculation.dflash2 import DFlash2Speculator
from stack.speculation.mtp import MtpSpeculator

DraftLog = dict[tuple[int, int], list[int]]
"""(a request's seed, position of its pending token) -> the tokens drafted behind it."""


def known_text(prompts: Sequence[Sequence[int]], plain: Sequence[Sequence[int]]) -> Tensor:
    """int64 [N, L]: prompt and greedy continuation of each request, zeros behind."""
    longest = max(len(prompt) + len(tokens) for prompt, tokens in zip(prompts, plain, strict=True)) + 32
    text = torch.zeros(len(prompts), longest, dtype=torch.int64)
    for i, (prompt, tokens) in enumerate(zip(prompts, plain, strict=True)):
        text[i, : len(prompt) + len(tokens)] = torch.tensor([*prompt, *tokens])
    return text


def watch_drafts(monkeypatch: pytest.MonkeyPatch, text: Tensor | None = None, *, keep: int | None = None) -> DraftLog:
    """Log what the drafters guess. With `text` (row i is the request with seed i), verify sees that text instead.

    Of each block the first `keep` tokens are right; without it a number from none to all, by position and seed.
    """
    log: DraftLog = {}
    for speculator in (DFlash2Speculator, MtpSpeculator):
        monkeypatch.setattr(speculator, "draft", _watched(speculator.draft, log, text, keep))
    return log


def accepted_lengths(log: DraftLog) -> set[int]:
    """Tokens that steps committed, by the positions where the next ones began."""
    starts = sorted(log)
    return {after - before for (seed, before), (other, after) in itertools.pairwise(starts) if seed == other}


def _watched(honest, log, text, keep):
    def draft(self, batch: DecodeBatch) -> None:
        honest(self, batch)
        seed_R = batch.slots.seed_S[batch.slot_R.long()]
        rows = zip(
            batch.slot_R.tolist(),
            seed_R.tolist(),
            batch.position_RW[:, 0].tolist(),
            batch.token_RW[:, 1:].tolist(),
            strict=True,
        )
        log.update({(seed, position): drafts for slot, seed, position, drafts in rows if slot})
        if text is not None:
            batch.token_RW[:, 1:] = _taught(batch, seed_R, text, keep)
            if isinstance(self, DFlash2Speculator):
                self._proposals[int(batch.slot_R.shape[0])] = Proposal(batch.token_RW[:, 1:])

    return draft


def _taught(batch: DecodeBatch, seed_R: Tensor, text: Tensor, keep: int) -> Tensor:
    position_RE = batch.position_RW[:, 1:].long()
    token_RE = text[seed_R[:, None], position_RE.clamp(max=text.shape[1] - 1)]
    start_R1 = batch.position_RW[:, :1].long()
    right_R1 = (3 * start_R1 * start_R1 + 5 * start_R1 + seed_R[:, None]) % 103 % batch.width
    if keep is not None:
        right_R1 = torch.full_like(right_R1, keep)
    spoilt = torch.arange(position_RE.shape[1]) >= right_R1
    return torch.where(spoilt, (token_RE + 1) % 1000, token_RE)
