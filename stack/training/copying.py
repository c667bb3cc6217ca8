"""Where a row's next token can be copied from, and how far one attention head is from looking there.

Small models answer a few questions about earlier lines from their recurrent states, and attention, which could answer
many, is then never asked. So while the target trains, the first head of the first sparse-attention layer is drawn to
the token behind the longest earlier repetition of the last tokens: what an induction head does. What is made of that
token is left to the loss of the next one.

B sequences, T tokens, S tokens looked at.
"""

import torch
from torch import Tensor
from torch.nn import functional

_LEAST, _MOST = 3, 6
"""Shortest repetition that counts, and the length from which all are alike."""
_NOWHERE = -1e9


def copy_sources(rows: Tensor) -> Tensor:
    """bool [B, T, S] for int64 rows [B, T + 1]: behind S - 1 tokens stands the next one, after the longest repetition.

    All false at tokens that no three tokens before lead to, and where the longest repetition leads to another token.
    """
    tokens, following = rows[:, :-1], rows[:, 1:]
    same = tokens[:, :, None] == tokens[:, None, :]
    same &= torch.ones_like(same[0]).tril(-1)
    length, run = same.to(torch.int8), same
    for _ in range(_MOST - 1):
        run = same & functional.pad(run[:, :-1, :-1], (1, 0, 1, 0))
        length += run
    longest = length.amax(-1, keepdim=True)
    leads = (length == longest) & (longest >= _LEAST) & (following[:, :, None] == following[:, None, :])
    return functional.pad(leads[:, :, :-1], (1, 0))


def copy_loss(scores: Tensor, sources: Tensor) -> Tensor:
    """Mean of -log of the attention's share on the sources, where there are any; scores [B, T, S], -inf if unseen."""
    found = sources.any(-1)
    kept = scores.masked_fill(~sources, _NOWHERE).logsumexp(-1)
    missed = torch.where(found, scores.logsumexp(-1) - kept, 0.0)
    return missed.sum() / found.sum().clamp(min=1)
