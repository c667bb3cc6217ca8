"""Sources lead to the next token behind the longest repetition; the loss is the attention's share that misses them."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from stack.training.copying import copy_loss, copy_sources


def longest(tokens, t, s):
    """Tokens alike up to t and up to s, at most six."""
    count = 0
    while count < 6 and s - count >= 0 and tokens[t - count] == tokens[s - count]:
        count += 1
    return count


@given(st.lists(st.integers(0, 2), min_size=2, max_size=40))
def test_sources_are_those_of_the_definition(tokens):
    found = copy_sources(torch.tensor([tokens]))[0]
    for t in range(len(tokens) - 1):
        runs = [longest(tokens, t, s) for s in range(t)]
        best = max(runs, default=0)
        wanted = {s + 1 for s in range(t) if best >= 3 and runs[s] == best and tokens[s + 1] == tokens[t + 1]}
        assert set(found[t].nonzero().flatten().tolist()) == wanted


def test_the_loss_is_the_share_that_misses_and_nothing_where_there_is_no_source():
    scores = torch.log(torch.tensor([[[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.2, 0.3]]])).requires_grad_()
    sources = torch.tensor([[[False] * 3, [True, False, False], [False, True, True]]])
    loss = copy_loss(scores, sources)
    assert math.isclose(float(loss.detach()), -(math.log(0.25) + math.log(0.5)) / 2, rel_tol=1e-5)
    loss.backward()
    assert scores.grad is not None and not scores.grad.isnan().any()
    assert float(copy_loss(scores.detach(), torch.zeros_like(sources))) == 0.0
