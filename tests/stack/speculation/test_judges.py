"""The drafters, incremental and over real caches, against judges that recompute everything in FP64.

The target's own values come from transformers' `glm5_next` over the whole text, so taps and hiddens are judged too.
"""

from functools import partial

import pytest
import torch

from stack.models.dflash2 import DFlash2Draft
from stack.models.mtp import MtpLayer
from tests.support.draft_judges import BlockJudge, ChainJudge
from tests.support.drafts import known_text, watch_drafts
from tests.support.glm_reference import GlmReference
from tests.support.local_pair import single

pytestmark = pytest.mark.slow

TAPS = (1, 4, 7)
TOLERANCE = 1e-4
"""Largest difference, as a share of the largest value."""


def assert_near(found, wanted):
    assert (found.double() - wanted.double()).abs().max() <= TOLERANCE * wanted.double().abs().max()


def _keep(kept, number, module, inputs, output):
    kept[number] = output


@pytest.fixture(scope="module")
def truth(tiny, prompts, plain):
    """Per text: tokens, completed outputs of the tapped layers [L, F] and last hiddens [L, C], by transformers."""
    judge, found = GlmReference(tiny), {}
    layers = judge.model.model.language_model.layers
    for i in (0, len(prompts) - 1):
        tokens, kept = [*prompts[i], *plain[i]], {}
        hooks = [layers[n].register_forward_hook(partial(_keep, kept, n)) for n in TAPS]
        with torch.no_grad():
            hidden = judge.model.model.language_model(input_ids=torch.tensor([tokens]), use_cache=False)
        for hook in hooks:
            hook.remove()
        taps = [(kept[n][0] if isinstance(kept[n], tuple) else kept[n])[0].float().mean(1) for n in TAPS]
        found[i] = tokens, torch.cat(taps, -1), hidden.last_hidden_state[0]
    return found


@pytest.mark.parametrize("i", [0, 4], ids=["a short prompt", "a prompt beyond the window"])
@pytest.mark.parametrize("method", ["dflash2", "dflash2_full"])
def test_a_block_is_the_judges(method, i, tiny, exact, prompts, greedy, plain, truth, monkeypatch):
    tokens, taps, _ = truth[i]
    log, seen, rows = watch_drafts(monkeypatch, known_text(prompts, plain)), {}, {}
    context_rows, choose = DFlash2Draft.context_rows, DFlash2Draft._choose

    def watched_context(self, taps_TF, position_T):
        seen.update(zip(position_T.tolist(), taps_TF.clone(), strict=True))
        return context_rows(self, taps_TF, position_T)

    def watched_choose(self, last_TC, anchor_B, *rest):
        rows[len(rows)] = (int(anchor_B[0]), last_TC.clone())
        return choose(self, last_TC, anchor_B, *rest)

    monkeypatch.setattr(DFlash2Draft, "context_rows", watched_context)
    monkeypatch.setattr(DFlash2Draft, "_choose", watched_choose)
    with single(exact(method, **{"scheduler.overlap": False})) as one:
        assert one.run([prompts[i]], [greedy(len(prompts))[i]])[0][0] == plain[i]

    first = 0 if method == "dflash2_full" else max(0, len(prompts[i]) - 64)
    committed = range(first, len(tokens) - 1)
    assert set(committed) <= set(seen)
    assert_near(torch.stack([seen[p] for p in committed]), taps[first : len(tokens) - 1])

    judge = BlockJudge(tiny)
    assert len(log) == len(rows) >= 5
    for ((_, position), drafts), (anchor, found) in zip(log.items(), rows.values(), strict=True):
        assert anchor == tokens[position]
        wanted = judge.block(taps[:position], anchor)
        assert_near(found, wanted)
        assert drafts == judge.choose(wanted, anchor)


@pytest.mark.parametrize("i", [0, 4], ids=["a short prompt", "a prompt beyond the index budget"])
@pytest.mark.parametrize("share", [True, False], ids=["shared sets", "own sets"])
def test_a_chain_is_the_judges(share, i, tiny, exact, prompts, greedy, plain, truth, monkeypatch):
    tokens, _, hidden = truth[i]
    log, chains = watch_drafts(monkeypatch, known_text(prompts, plain)), []
    forward = MtpLayer.forward

    def watched(self, token_T, hidden_TC, ctx, memory, index_TW=None):
        r_TC, index_TW = forward(self, token_T, hidden_TC, ctx, memory, index_TW)
        if ctx.kind == "decode":
            chains.append((int(ctx.position_T[0]), hidden_TC.clone(), r_TC.clone()))
        return r_TC, index_TW

    monkeypatch.setattr(MtpLayer, "forward", watched)
    with single(exact("mtp718", **{"scheduler.overlap": False, "speculation.share_index": share})) as one:
        assert one.run([prompts[i]], [greedy(len(prompts))[i]])[0][0] == plain[i]

    judge = ChainJudge(tiny)
    entries, made = judge.committed(hidden[:-1], tokens)
    assert len(chains) == 6 * len(log) >= 30
    for at, ((_, position), drafts) in enumerate(log.items()):
        steps = chains[6 * at : 6 * at + 6]
        rs, wanted = judge.chain(entries.first(position), *made[position - 1], 7, share=share)
        assert [step[0] for step in steps] == [*range(position, position + 6)]
        assert_near(torch.cat([steps[0][1], *(step[2] for step in steps)]), torch.stack(rs))
        assert drafts == wanted
