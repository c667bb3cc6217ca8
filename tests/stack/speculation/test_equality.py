"""Speculation never changes a greedy token: with drafts that are right, wrong and right again at every depth.

The drafts of random weights are always wrong, so known text, partly spoilt, takes their place: every accepted length
from 1 to W occurs, and is asserted to. States, windows, tails and the drafters' own caches are the real ones.
"""

import time

import pytest

from stack.speculation.commit import StateCommit
from tests.support.drafts import accepted_lengths, known_text, watch_drafts
from tests.support.local_pair import single

METHODS = ("dflash2", "dflash2_full", "mtp516", "mtp718")


def _run(settings, prompts, sampling):
    with single(settings) as one:
        return one.run(prompts, sampling)


@pytest.mark.parametrize("method", METHODS)
def test_own_drafts_leave_greedy_text_alone(method, exact, prompts, greedy, plain):
    found = _run(exact(method), prompts, greedy(len(prompts)))
    assert [tokens for tokens, _ in found] == plain
    assert all(last.num_verify > 0 for _, last in found)


@pytest.mark.parametrize("commit", ["replay", "snapshot"])
@pytest.mark.parametrize("method", ["dflash2", "mtp516"])
def test_partly_right_drafts_leave_greedy_text_alone(method, commit, exact, prompts, greedy, plain, monkeypatch):
    log = watch_drafts(monkeypatch, known_text(prompts, plain))
    found = _run(exact(method, **{"speculation.commit": commit}), prompts, greedy(len(prompts)))
    assert [tokens for tokens, _ in found] == plain
    assert accepted_lengths(log) == set(range(1, len(next(iter(log.values()))) + 2))
    num_new = sum(map(len, plain))
    assert sum(last.num_accepted_drafts for _, last in found) > num_new // 3
    assert all(last.num_verify < len(tokens) - 1 for tokens, last in found)


def test_a_rollback_that_commits_too_much_is_caught_though_it_accepts(exact, prompts, greedy, plain, monkeypatch):
    """The control: states that also fold rejected rows must show up as other text."""
    watch_drafts(monkeypatch, known_text(prompts, plain))
    honest = StateCommit.__call__

    def careless(self, batch, context, memory):
        count_R = batch.count_R.clone()
        batch.count_R.fill_(batch.width)
        honest(self, batch, context, memory)
        batch.count_R.copy_(count_R)

    monkeypatch.setattr(StateCommit, "__call__", careless)
    found = _run(exact("dflash2"), prompts, greedy(len(prompts)))
    assert [tokens for tokens, _ in found] != plain
    assert sum(last.num_accepted_drafts for _, last in found) > 0


@pytest.mark.parametrize("method", ["dflash2", "mtp718"])
def test_steps_per_token_fall_as_acceptance_says(method, exact, prompts, greedy, plain, monkeypatch):
    """With the first k drafts of each block right, n tokens take n / (k + 1) steps, rounded up."""
    decoded, text = len(plain[0]) - 1, known_text(prompts[:1], plain[:1])
    with single(exact(method, **{"scheduler.overlap": False})) as one:
        one.run(prompts[:1], greedy(1))
        for right in (0, 1, 3, 5, 7):
            with monkeypatch.context() as patch:
                watch_drafts(patch, text, keep=right)
                begun_s = time.process_time()
                [(tokens, last)] = one.run(prompts[:1], greedy(1))
                per_token_ms = 1e3 * (time.process_time() - begun_s) / decoded
            print(f"{method}: {right} right: {last.num_verify} steps, {per_token_ms:.1f} ms of processor time a token")
            assert tokens == plain[0]
            assert last.num_verify == -(-decoded // (right + 1))


def test_limits_hold_inside_a_block(exact, prompts, greedy, plain, monkeypatch):
    watch_drafts(monkeypatch, known_text(prompts, plain))
    with single(exact("dflash2")) as one:
        for new in (1, 2, 5):
            found = one.run(prompts, greedy(len(prompts), new=new))
            assert [tokens for tokens, _ in found] == [tokens[:new] for tokens in plain]


def test_forced_acceptance_commits_what_was_asked_for(exact, prompts, greedy):
    found = _run(exact("mtp718", **{"speculation.force_accept_length": 4.5}), prompts, greedy(len(prompts)))
    steps = sum(last.num_verify for _, last in found)
    assert sum(len(tokens) - 1 for tokens, _ in found) / steps == pytest.approx(4.5, abs=0.7)
