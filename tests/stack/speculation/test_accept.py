"""What a verify keeps: greedy prefixes, rejection sampling that leaves the distribution alone, forced lengths."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stack.kernels.catalog import OPS
from stack.speculation.accept import Proposal, RowSampling, accept_forced, accept_greedy, accept_sampled

VOCAB, WIDTH, DRAWS = 12, 4, 24_000
SAMPLE = OPS["sample"].bind("torch_sort", "cpu")


def _sampling(batch: int, temperature: float, top_p: float = 1.0, top_k: int = -1) -> RowSampling:
    return RowSampling(
        temperature_B=torch.full((batch,), temperature),
        top_k_B=torch.full((batch,), top_k, dtype=torch.int32),
        top_p_B=torch.full((batch,), top_p),
        min_p_B=torch.zeros(batch),
        seed_B=torch.arange(batch, dtype=torch.int64) * 7919 + 1,
        position_B=torch.full((batch,), 5, dtype=torch.int32),
    )


def _accept(logits_BWV, proposal, sampling):
    return accept_sampled(
        logits_BWV, proposal, sampling, SAMPLE.function("filtered_probs"), SAMPLE.function("uniforms")
    )


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, WIDTH - 1))
def test_greedy_keeps_exactly_the_drafts_that_the_target_would_have_said(seed, agreeing):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, WIDTH, VOCAB, generator=draw)
    best = logits.argmax(dim=-1)
    draft = best[:, :-1].clone()
    if agreeing < WIDTH - 1:
        draft[0, agreeing] = (draft[0, agreeing] + 1) % VOCAB
    accepted = accept_greedy(logits, draft)
    assert accepted.count_B.tolist() == [agreeing + 1]
    assert accepted.tokens_BW[0, : agreeing + 1].tolist() == best[0, : agreeing + 1].tolist()
    assert not accepted.tokens_BW[0, agreeing + 1 :].any()


def test_forced_acceptance_has_the_mean_that_was_asked_for():
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(1))
    logits = torch.randn(1, 8, VOCAB).expand(20_000, -1, -1)
    draft = torch.zeros(20_000, 7, dtype=torch.int64)
    counts = accept_forced(logits, draft, 7.03, uniform).count_B
    assert set(counts.tolist()) == {7, 8}
    assert counts.float().mean().item() == pytest.approx(7.03, abs=0.01)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("drawn", [True, False], ids=["drafts drawn from q", "arg max drafts"])
def test_sampling_leaves_the_targets_distribution_alone(temperature, top_p, drawn):
    draw = torch.Generator().manual_seed(11)
    logits = torch.randn(1, WIDTH, VOCAB, generator=draw).expand(DRAWS, -1, -1).contiguous()
    sampling = _sampling(DRAWS, temperature, top_p)
    accepted = _accept(logits, _proposal(draw, drawn, logits[0]), sampling)
    target = SAMPLE.function("filtered_probs")(
        logits[0],
        *(torch.full((WIDTH,), v) for v in (temperature,)),
        torch.full((WIDTH,), -1, dtype=torch.int32),
        torch.full((WIDTH,), top_p),
        torch.zeros(WIDTH),
    )
    for row in range(WIDTH):
        reached = accepted.tokens_BW[accepted.count_B > row, row]
        assert row > 0 or len(reached) == DRAWS
        if len(reached) >= 200:
            _assert_distribution(reached, target[row])


def _proposal(draw: torch.Generator, drawn: bool, like_WV: torch.Tensor) -> Proposal:
    q = torch.softmax(like_WV[:-1] + torch.randn(WIDTH - 1, VOCAB, generator=draw), dim=-1)
    if not drawn:
        return Proposal(q.argmax(dim=-1).expand(DRAWS, -1).contiguous())
    tokens = torch.stack([torch.multinomial(row, DRAWS, replacement=True, generator=draw) for row in q], dim=1)
    ids = torch.arange(VOCAB).expand(DRAWS, WIDTH - 1, VOCAB).contiguous()
    return Proposal(tokens, ids, q.expand(DRAWS, -1, -1).contiguous())


def _assert_distribution(tokens: torch.Tensor, probs: torch.Tensor) -> None:
    counts = torch.bincount(tokens.long(), minlength=VOCAB).double()
    assert not counts[probs == 0].any(), "a token outside the target's support was said"
    expected = probs.double() / probs.double().sum() * counts.sum()
    likely = expected >= 5
    seen = torch.cat([counts[likely], counts[~likely].sum()[None]])
    wanted = torch.cat([expected[likely], expected[~likely].sum()[None]])
    if wanted[-1] < 1:
        seen, wanted = seen[:-1] + seen[-1] / len(seen[:-1]), wanted[:-1] + wanted[-1] / len(wanted[:-1])
    if len(wanted) > 1:
        assert stats.chisquare(seen.numpy(), wanted.numpy()).pvalue > 1e-4


def test_a_biased_acceptance_is_caught_by_the_same_test():
    """The control: keeping every draft would change the distribution."""
    draw = torch.Generator().manual_seed(11)
    proposal = _proposal(draw, True, torch.randn(WIDTH, VOCAB, generator=draw))
    probs = torch.softmax(torch.randn(VOCAB, generator=draw), dim=-1)
    with pytest.raises(AssertionError):
        _assert_distribution(proposal.token_BE[:, 0], probs)


def test_greedy_rows_in_a_sampled_batch_stay_greedy():
    draw = torch.Generator().manual_seed(3)
    logits = torch.randn(6, WIDTH, VOCAB, generator=draw)
    draft = logits.argmax(dim=-1)[:, :-1].clone()
    draft[::2, 1] = (draft[::2, 1] + 1) % VOCAB
    mixed = _sampling(6, 1.0)
    mixed.temperature_B[:3] = 0.0
    want, got = accept_greedy(logits, draft), _accept(logits, Proposal(draft), mixed)
    assert got.count_B[:3].tolist() == want.count_B[:3].tolist()
    assert got.tokens_BW[:3].tolist() == want.tokens_BW[:3].tolist()


def test_a_requests_draws_do_not_depend_on_its_batch():
    draw = torch.Generator().manual_seed(4)
    logits = torch.randn(8, WIDTH, VOCAB, generator=draw)
    draft = torch.randint(0, VOCAB, (8, WIDTH - 1), generator=draw)
    sampling = _sampling(8, 1.0)
    together = _accept(logits, Proposal(draft), sampling)
    fields = ("temperature_B", "top_k_B", "top_p_B", "min_p_B", "seed_B", "position_B")
    for i in range(8):
        alone = RowSampling(**{name: getattr(sampling, name)[i : i + 1] for name in fields})
        got = _accept(logits[i : i + 1], Proposal(draft[i : i + 1]), alone)
        assert got.tokens_BW[0].tolist() == together.tokens_BW[i].tolist()
