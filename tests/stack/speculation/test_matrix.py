"""Greedy text of every drafter, commit, batch and placement: that of plain decoding, token for token.

The nightly form is 64 prompts of 256 tokens at batch 1 and 32; the short one has 6 prompts of 24 tokens.
Drafts are known text, partly spoilt, over the drafters' own caches: steps commit from 1 to W tokens.
"""

import itertools

import pytest
import torch

from tests.support.checkpoints import WITHOUT_CHOICES, variant
from tests.support.drafts import known_text, watch_drafts
from tests.support.glm_reference import GlmReference
from tests.support.local_pair import pair, single

METHODS, COMMITS, PLACES = ("mtp516", "mtp718", "dflash2"), ("replay", "snapshot"), ("single", "1p1d")
SHORT, LONG = (6, 24), (64, 256)
"""Prompts and tokens."""
CELLS = [
    *((*cell, SHORT) for cell in itertools.product(METHODS, COMMITS, (6,), PLACES)),
    *((method, "replay", 1, "single", SHORT) for method in METHODS),
]
NIGHTLY = [(*cell, LONG) for cell in itertools.product(METHODS, COMMITS, (1, 32), PLACES)]
MOST_GAP = 0.05
"""Logit gap under which a BF16 state may take the other token; logits of this model have a spread of about 1."""

pytestmark = pytest.mark.slow


def _asked(count):
    draw = torch.Generator().manual_seed(29)
    lengths = torch.randint(1, 140, (count,), generator=draw).tolist()
    return [torch.randint(4, 1000, (length,), generator=draw).tolist() for length in lengths]


def _generate(place, settings, asked, sampling, batch):
    opened = single(settings) if place == "single" else pair(settings)
    with opened as engine:
        found = []
        for start in range(0, len(asked), batch):
            found += engine.run(asked[start : start + batch], sampling[start : start + batch], timeout_s=3000)
        return found


@pytest.fixture(scope="module")
def texts(exact, greedy):
    """(prompts, plain tokens) of a size, decoded once without speculation."""
    known = {}

    def of(size):
        if size not in known:
            asked = _asked(size[0])
            settings = exact(**_room(size))
            found = _generate("single", settings, asked, greedy(size[0], new=size[1]), 32)
            known[size] = asked, [tokens for tokens, _ in found]
        return known[size]

    return of


def _room(size):
    return {"cache.expected_output": max(64, size[1]), "cache.budget_bytes": (160 if size == SHORT else 512) << 20}


def _speculated(settings, place, batch, size, texts, greedy):
    asked, plain = texts(size)
    with pytest.MonkeyPatch.context() as patch:
        watch_drafts(patch, known_text(asked, plain))
        found = _generate(place, settings, asked, greedy(size[0], new=size[1]), batch)
    steps, accepted = (sum(getattr(last, name) for _, last in found) for name in ("num_verify", "num_accepted_drafts"))
    return [tokens for tokens, _ in found], steps, accepted


@pytest.mark.parametrize(
    ("method", "commit", "batch", "place", "size"),
    [
        *CELLS,
        *(pytest.param(*cell, marks=[pytest.mark.nightly, pytest.mark.timeout(7200)]) for cell in NIGHTLY),
    ],
)
def test_greedy_text_is_plain_decodings(method, commit, batch, place, size, texts, exact, greedy):
    settings = exact(method, **{"speculation.commit": commit}, **_room(size))
    tokens, steps, accepted = _speculated(settings, place, batch, size, texts, greedy)
    num_decoded = size[0] * (size[1] - 1)
    print(f"{method} {commit} batch {batch} {place}: {num_decoded} tokens in {steps} verifies, {accepted} accepted")
    assert tokens == texts(size)[1]
    assert accepted > num_decoded // 3


@pytest.mark.parametrize("size", [SHORT, pytest.param(LONG, marks=[pytest.mark.nightly, pytest.mark.timeout(7200)])])
@pytest.mark.parametrize("commit", COMMITS)
def test_bf16_states_part_only_where_the_logits_are_close(commit, size, tiny, exact, greedy, tmp_path):
    """On weights without discrete choices: elsewhere a near-tie of routing or selection turns rounding into any gap."""
    folder = variant(tiny, tmp_path / "smooth", **WITHOUT_CHOICES)
    room = {"model.path": str(folder), **_room(size)}
    asked, sampling = _asked(size[0]), greedy(size[0], new=size[1])
    plain = [tokens for tokens, _ in _generate("single", exact(**room), asked, sampling, 32)]
    settings = exact("dflash2", **room, **{"speculation.commit": commit, "cache.state_dtype": "bfloat16"})
    found, _, _ = _speculated(settings, "single", 32, size, lambda size: (asked, plain), greedy)
    judge, gaps = GlmReference(folder), {}
    for i, (one, other) in enumerate(zip(found, plain, strict=True)):
        at = next((n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)
        if at is not None:
            logits = judge.logits([*asked[i], *other[:at]])[-1]
            gaps[i, at] = float(logits[other[at]] - logits[one[at]])
    print(f"BF16 states, {commit}: {len(gaps)} of {size[0]} texts part; (prompt, token): logit gap = {gaps}")
    assert all(0 <= gap <= MOST_GAP for gap in gaps.values())
