"""Speculation over a hand-off: a decode instance drafts, accepts and says what one instance alone does.

Every block that the drafters guess is compared, not only the text: a draft state that did not travel, or that a prefix
hit, a swap or a commit spoilt, shows as another guess although the text stays right.
"""

import pytest

from tests.support.drafts import known_text, watch_drafts
from tests.support.local_pair import pair, single

pytestmark = pytest.mark.slow

RADIX = {"prefill": {"cache.prefix": "hybrid_radix"}, "decode": {"cache.prefix": "kv_radix"}}


@pytest.fixture(scope="module", params=["dflash2", "dflash2_full", "mtp718"])
def runs(request, exact, prompts, greedy, plain):
    """One method: natural drafts alone; taught ones alone and on a pair, asked twice so that prefixes are found."""
    settings = exact(request.param, **{"scheduler.chunk_tokens": 64})
    sampling, text = greedy(len(prompts)), known_text(prompts, plain)
    found, logs = {}, {}
    with pytest.MonkeyPatch.context() as patch, single(settings) as one:
        logs["natural"] = watch_drafts(patch)
        found["natural"] = one.run(prompts, sampling)
    with pytest.MonkeyPatch.context() as patch, single(settings) as one:
        logs["alone"] = watch_drafts(patch, text)
        found["alone"] = one.run(prompts, sampling)
    with pair(settings, **RADIX) as two:
        for name in ("pair", "again"):
            with pytest.MonkeyPatch.context() as patch:
                logs[name] = watch_drafts(patch, text)
                found[name] = two.run(prompts, sampling)
    return found, logs


@pytest.mark.parametrize("run", ["natural", "alone", "pair", "again"])
def test_tokens_are_those_of_plain_decoding(runs, run, plain):
    assert [tokens for tokens, _ in runs[0][run]] == plain


@pytest.mark.parametrize("run", ["pair", "again"])
def test_as_many_drafts_are_accepted_as_alone(runs, run):
    def counts(name):
        return [(last.num_verify, last.num_accepted_drafts) for _, last in runs[0][name]]

    assert counts(run) == counts("alone")
    assert sum(accepted for _, accepted in counts(run)) > 0


def test_the_second_time_both_sides_find_prefixes(runs, prompts):
    cached = [last.cached_tokens for _, last in runs[0]["again"]]
    moved = [[last.timing["transfer_bytes"] for _, last in runs[0][name]] for name in ("pair", "again")]
    for prompt, hit, first, second in zip(prompts, cached, *moved, strict=True):
        assert hit >= (len(prompt) - 1) // 64 * 64
        assert second < first if len(prompt) > 64 else second <= first


@pytest.mark.parametrize("run", ["alone", "pair", "again"])
def test_a_guess_depends_on_the_committed_text_alone(runs, run, prompts):
    """Neither the hand-off, a prefix hit, nor how many tokens earlier steps accepted may show in a draft."""
    natural, log = runs[1]["natural"], runs[1][run]
    common = [key for key in log if key in natural]
    assert {(i, len(prompt)) for i, prompt in enumerate(prompts)} <= set(common), "the first guesses are compared"
    assert len(common) >= 4 * len(prompts)
    assert {key: log[key] for key in common} == {key: natural[key] for key in common}


@pytest.fixture(scope="module", params=["dflash2", "mtp718"])
def taught(request, exact, prompts, plain):
    """A pair whose drafts are partly right."""
    settings = exact(request.param, **{"scheduler.reserve_output_tokens": 1})
    with pytest.MonkeyPatch.context() as patch, pair(settings, **RADIX) as two:
        watch_drafts(patch, known_text(prompts, plain))
        yield two


def test_an_end_token_inside_a_block_is_the_last(taught, prompts, greedy, plain):
    at = 17
    asked = [
        taught.ask(prompt, greedy(i + 1, stop_token_ids=(tokens[at],))[i])
        for i, (prompt, tokens) in enumerate(zip(prompts, plain, strict=True))
    ]
    for (found, last), tokens in zip(taught.finish(asked), plain, strict=True):
        assert found == tokens[: tokens.index(tokens[at]) + 1]
        assert (last.finish, last.matched) == ("stop", tokens[at])


@pytest.mark.parametrize("new", [1, 2, 6])
def test_the_limit_inside_a_block_is_kept(taught, prompts, greedy, plain, new):
    found = taught.run(prompts, greedy(len(prompts), new=new))
    assert [tokens for tokens, _ in found] == [tokens[:new] for tokens in plain]


@pytest.mark.parametrize("said", [0, 1, 9])
def test_an_abort_between_two_steps_disturbs_nobody(taught, prompts, greedy, plain, said):
    rids = [taught.ask(prompt, params) for prompt, params in zip(prompts, greedy(len(prompts)), strict=True)]
    decode = taught.decode
    while len(decode.tokens.get(rids[1], ())) < said:
        taught.turn()
    for half in taught.halves:
        half.abort(rids[1])
    found = taught.finish(rids)
    assert decode.last[rids[1]].finish == "abort"
    for i in (0, 2, 3, 4):
        assert found[i][0] == plain[i]


def test_swaps_between_two_steps_change_nothing(taught, prompts, greedy, plain):
    memory = taught.decode.scheduler.memory
    memory.flush()
    hold = memory.cache.admit(memory.cache.keys([]), num_tokens=64 * (memory.cache.pages.num_free - 9))
    rids = [taught.ask(prompt, params) for prompt, params in zip(prompts, greedy(len(prompts)), strict=True)]
    while not all(rid in taught.decode.last for rid in rids):
        taught.turn()
    memory.cache.release(hold)
    found = taught.finish(rids)
    assert [tokens for tokens, _ in found] == plain
    assert sum(last.num_swaps for _, last in found) > 0
