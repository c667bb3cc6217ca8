"""Speculation never changes a greedy token: with drafts that are right, wrong and right again at every depth.

The drafts of random weights are always wrong, so a test drafter stands in that knows the plain text and spoils some of
it: every accepted length from 1 to W occurs. States, windows, tails and the drafters' own caches are the real ones.
"""

import pytest
import torch

from stack.config import EngineConfig, with_settings
from stack.core import SamplingParams
from stack.engine.local import LocalEngine
from stack.models.tiny import write_tiny
from stack.speculation.accept import Proposal
from stack.speculation.commit import StateCommit
from stack.speculation.dflash2 import DFlash2Speculator
from stack.speculation.mtp import MtpSpeculator

LENGTHS = (3, 64, 65, 131)
NEW = 28
FP32 = {
    "model.compute_dtype": "float32",
    "cache.kv_dtype": "float32",
    "cache.index_dtype": "float32",
    "cache.conv_dtype": "float32",
    "cache.budget_bytes": 160 * 2**20,
    "cache.expected_context": 256,
    "cache.expected_output": 64,
    "scheduler.chunk_tokens": 128,
    "scheduler.max_prefill_tokens": 256,
}
METHODS = {
    "dflash2": {"speculation.method": "dflash2"},
    "dflash2_full": {"speculation.method": "dflash2", "cache.draft_kv": "full"},
    "mtp516": {"speculation.method": "mtp", "speculation.num_steps": 5, "speculation.verify_width": 6},
    "mtp718": {"speculation.method": "mtp", "speculation.share_index": False},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, dtype="float32")
    return folder


@pytest.fixture(scope="module")
def prompts():
    draw = torch.Generator().manual_seed(5)
    return [torch.randint(4, 1000, (length,), generator=draw).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def plain(tiny, prompts):
    return [tokens for tokens, _ in _run(tiny, prompts, {})]


def _run(folder, prompts, settings, new=NEW):
    paths = {"model.path": str(folder), "speculation.draft_path": str(folder / "draft")}
    sampling = [
        SamplingParams(max_new_tokens=new, temperature=0.0, ignore_eos=True, seed=i) for i in range(len(prompts))
    ]
    with LocalEngine(with_settings(EngineConfig(), {**FP32, **paths, **settings})) as engine:
        return engine.run(prompts, sampling)


def _teach(monkeypatch, prompts, plain):
    """Drafts come from the plain text; roughly every fourth is spoilt, by position."""
    longest = max(LENGTHS) + NEW + 16
    text = torch.zeros(len(prompts), longest, dtype=torch.int64)
    for i, (prompt, tokens) in enumerate(zip(prompts, plain, strict=True)):
        known = torch.tensor([*prompt, *tokens])
        text[i, : len(known)] = known

    def draft(self, batch):
        request_R = batch.slots.seed_S[batch.slot_R.long()]
        position_RE = batch.position_RW[:, 1:].long()
        token_RE = text[request_R[:, None], position_RE]
        spoilt = (position_RE * 7 + batch.position_RW[:, :1] * 3 + request_R[:, None]) % 9 < 2
        batch.token_RW[:, 1:] = torch.where(spoilt, (token_RE + 1) % 1000, token_RE)
        if isinstance(self, DFlash2Speculator):
            self._proposals[int(batch.slot_R.shape[0])] = Proposal(batch.token_RW[:, 1:])

    for speculator in (DFlash2Speculator, MtpSpeculator):
        monkeypatch.setattr(speculator, "draft", draft)


@pytest.mark.parametrize("method", METHODS)
def test_own_drafts_leave_greedy_text_alone(method, tiny, prompts, plain):
    found = _run(tiny, prompts, METHODS[method])
    assert [tokens for tokens, _ in found] == plain
    assert all(last.num_verify > 0 for _, last in found)


@pytest.mark.parametrize("commit", ["replay", "snapshot"])
@pytest.mark.parametrize("method", ["dflash2", "mtp516"])
def test_partly_right_drafts_leave_greedy_text_alone(method, commit, tiny, prompts, plain, monkeypatch):
    _teach(monkeypatch, prompts, plain)
    found = _run(tiny, prompts, {**METHODS[method], "speculation.commit": commit})
    assert [tokens for tokens, _ in found] == plain
    assert sum(last.num_accepted_drafts for _, last in found) > len(prompts) * NEW // 3
    assert all(last.num_verify < NEW - 1 for _, last in found)


def test_a_rollback_that_commits_too_much_is_caught_though_it_accepts(tiny, prompts, plain, monkeypatch):
    """The control: states that also fold rejected rows must show up as other text."""
    _teach(monkeypatch, prompts, plain)
    honest = StateCommit.__call__

    def careless(self, batch, context, memory):
        count_R = batch.count_R.clone()
        batch.count_R.fill_(batch.width)
        honest(self, batch, context, memory)
        batch.count_R.copy_(count_R)

    monkeypatch.setattr(StateCommit, "__call__", careless)
    found = _run(tiny, prompts, METHODS["dflash2"])
    assert [tokens for tokens, _ in found] != plain
    assert sum(last.num_accepted_drafts for _, last in found) > 0


def test_limits_hold_inside_a_block(tiny, prompts, plain, monkeypatch):
    _teach(monkeypatch, prompts, plain)
    for new in (1, 2, 5):
        found = _run(tiny, prompts, METHODS["dflash2"], new=new)
        assert [tokens for tokens, _ in found] == [tokens[:new] for tokens in plain]


def test_forced_acceptance_commits_what_was_asked_for(tiny, prompts):
    found = _run(tiny, prompts, {**METHODS["mtp718"], "speculation.force_accept_length": 4.5})
    steps = sum(last.num_verify for _, last in found)
    assert sum(len(tokens) - 1 for tokens, _ in found) / steps == pytest.approx(4.5, abs=0.7)
