"""A prefill and a decode worker hand requests over by NIXL, and give the tokens that one alone would give."""

import itertools
import random
import time

import pytest

from stack.core import SamplingParams, messages
from tests.support.ledger_model import expected_tokens

VOCAB = 1024


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)


class Pair:
    def __init__(self, worker, prefill=None, decode=None):
        self.p = worker(role="prefill", **(prefill or {}))
        self.d = worker(role="decode", **(decode or {}))
        self.rooms = itertools.count(1)

    def ask(self, rid, prompt, count=8, *, to="pd"):
        meeting = messages.Bootstrap("127.0.0.1", self.p.http_port, next(self.rooms))
        for side in to:
            {"p": self.p, "d": self.d}[side].ask(rid, prompt, greedy(count), meeting)
        return meeting.room

    def finish(self, *rids):
        self.d.finish(*rids)
        self.p.finish(*rids)

    def check_empty(self):
        for side in (self.p, self.d):
            for _ in range(300):
                stats = side.stats()
                if not (stats["pages_used"] or stats["slots_used"] or stats["inflight"]):
                    break
                time.sleep(0.02)
            else:
                raise AssertionError(f"memory is still held: {stats}")


@pytest.fixture
def pair(worker):
    return lambda **kinds: Pair(worker, **kinds)


def prompts(count, seed=0, shared=0, most=200):
    draw = random.Random(seed)
    prefix = [draw.randrange(2, VOCAB) for _ in range(shared)]
    return [prefix + [draw.randrange(2, VOCAB) for _ in range(draw.randrange(1, most))] for _ in range(count)]


@pytest.mark.parametrize("overlap", [True, False])
def test_the_pair_gives_the_tokens_of_one_worker(pair, overlap):
    both = {"scheduler__overlap": overlap}
    one = pair(prefill=both, decode=both)
    asked = prompts(8)
    for i, prompt in enumerate(asked):
        one.ask(str(i), prompt)
    one.finish(*map(str, range(8)))
    for i, prompt in enumerate(asked):
        wanted = expected_tokens(prompt, 8, VOCAB)
        assert one.d.tokens[str(i)] == wanted
        assert one.p.tokens[str(i)] == wanted[:1]
        assert one.p.last[str(i)].finish == one.d.last[str(i)].finish == "length"
        assert one.d.last[str(i)].timing["transfer_bytes"] > 0
    one.check_empty()


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 128])
def test_lengths_around_every_boundary_arrive_whole(pair, length):
    one = pair()
    prompt = prompts(1, most=2)[0][:1] * length
    one.ask("a", prompt, 20)
    one.finish("a")
    assert one.d.tokens["a"] == expected_tokens(prompt, 20, VOCAB)


def test_a_prefix_that_decode_has_does_not_travel_again(pair):
    one = pair(prefill={"cache__prefix": "hybrid_radix"}, decode={"cache__prefix": "kv_radix"})
    asked = prompts(3, shared=96, most=30)
    sizes = []
    for i, prompt in enumerate([*asked, asked[0]]):
        one.ask(str(i), prompt)
        one.finish(str(i))
        assert one.d.tokens[str(i)] == expected_tokens(prompt, 8, VOCAB)
        sizes.append(one.d.last[str(i)].timing["transfer_bytes"])
    assert sizes[1] < sizes[0]
    assert one.d.last["2"].cached_tokens >= 96, "prefill resumed from its own snapshot"
    one.check_empty()


def test_requests_that_share_a_prefix_run_together_and_keep_their_own_states(pair):
    one = pair(decode={"cache__prefix": "kv_radix"})
    asked = prompts(6, shared=64, most=10)
    one.ask("first", asked[0], 2)
    one.finish("first")
    for i, prompt in enumerate(asked):
        one.ask(str(i), prompt, 30)
    one.finish(*map(str, range(6)))
    for i, prompt in enumerate(asked):
        assert one.d.tokens[str(i)] == expected_tokens(prompt, 30, VOCAB)
    one.check_empty()


@pytest.mark.parametrize("count", [0, 1])
def test_a_request_for_none_or_one_token_needs_no_decode_step(pair, count):
    one = pair()
    one.ask("a", [5, 6, 7], count)
    one.finish("a")
    assert len(one.d.tokens["a"]) == count
    one.check_empty()


@pytest.mark.parametrize("side", ["p", "d"])
@pytest.mark.parametrize("after_s", [0.0, 0.03, 0.1, 0.25])
def test_an_abort_on_either_side_ends_both_and_frees_their_memory(pair, side, after_s):
    one = pair(prefill={"disagg__bootstrap_timeout_s": 2.0})
    one.p.worker.instance.runner._prefill._model.delay_s = 0.03
    one.d.worker.instance.runner._prefill._model.delay_s = 0.01
    prompt = prompts(1, seed=3, most=2)[0] * 200
    one.ask("a", prompt, 40)
    one.ask("b", prompts(1, seed=4)[0], 10)
    time.sleep(after_s)
    getattr(one, side).say(messages.Abort(rid="a"))
    one.finish("a", "b")
    assert one.d.tokens["b"] == expected_tokens(prompts(1, seed=4)[0], 10, VOCAB)
    if side == "d":
        assert one.d.last["a"].finish == "abort"
    one.check_empty()


def test_a_request_that_only_decode_got_ends_when_nobody_answers(pair):
    one = pair(decode={"disagg__bootstrap_timeout_s": 1.0, "disagg__transfer_timeout_s": 1.0})
    one.ask("a", [5, 6, 7], to="d")
    one.d.finish("a")
    assert one.d.last["a"].finish == "abort"
    assert one.d.last["a"].status >= 500
    one.check_empty()


def test_a_mismatch_ends_both_halves_at_once_and_both_logs_name_both_values(pair, caplog):
    one = pair(decode={"cache__kv_dtype": "bfloat16"})
    begun_s = time.monotonic()
    one.ask("a", [5, 6, 7])
    one.finish("a")
    assert time.monotonic() - begun_s < 10.0  # the bootstrap timeout is 30 s
    both = "kv_dtype is float32 on prefill and bfloat16 on decode"
    for side in (one.p, one.d):
        assert side.last["a"].status == 500 and both in side.last["a"].error
    lines = [record.getMessage() for record in caplog.records if "(room 1) failed with 500" in record.getMessage()]
    assert len(lines) == 2 and all(both in line for line in lines)
    one.check_empty()


def test_the_very_first_request_of_a_pair_that_decode_refuses_ends_on_prefill_at_once(pair):
    one = pair()
    begun_s = time.monotonic()
    room = one.ask("a", [5, 6, 7], to="p")
    meeting = messages.Bootstrap("127.0.0.1", one.p.http_port, room)
    one.d.say(messages.Refuse(bootstrap=meeting, reason="it does not fit", status=400))
    one.p.finish("a")
    assert time.monotonic() - begun_s < 10.0
    assert (one.p.last["a"].status, one.p.last["a"].error) == (499, "it does not fit")
    one.check_empty()


def test_a_refusal_on_prefill_reaches_decode_at_once(pair):
    one = pair(prefill={"scheduler__max_queued": 1, "scheduler__max_running": 1})
    one.p.worker.instance.runner._prefill._model.delay_s = 0.05
    for rid in "abcde":
        one.ask(rid, prompts(1, seed=1, most=2)[0] * 150)
    one.finish(*"abcde")
    refused = [rid for rid in "abcde" if one.p.last[rid].status == 503]
    assert refused
    assert all(one.d.last[rid].finish == "abort" for rid in refused)
    one.check_empty()


def test_decode_holds_no_more_requests_than_the_limit_and_the_extra_ones(pair):
    one = pair(decode={"scheduler__max_running": 2, "scheduler__extra_inflight": 1})
    one.d.worker.instance.runner._prefill._model.delay_s = 0.01
    asked = prompts(8, seed=6, most=20)
    for i, prompt in enumerate(asked):
        one.ask(str(i), prompt, 12)
    most = 0.0
    while set(map(str, range(8))) - set(one.d.last):
        stats = one.d.stats()
        most = max(most, stats["running"] + stats["inflight"])
        assert stats["running"] <= 2
    assert most <= 3
    one.finish(*map(str, range(8)))
    for i, prompt in enumerate(asked):
        assert one.d.tokens[str(i)] == expected_tokens(prompt, 12, VOCAB)


@pytest.mark.parametrize(("overlap", "interval", "waits"), [(True, 1, False), (True, 2, True), (False, 1, True)])
def test_a_first_token_waits_for_no_step_where_the_next_one_is_queued(pair, overlap, interval, waits):
    step_s = 0.4
    one = pair(decode={"scheduler__overlap": overlap, "scheduler__polling_interval": interval})
    one.d.worker.instance.runner._prefill._model.delay_s = step_s
    one.ask("running", [5, 6, 7], 12)
    one.d.hear(messages.Tokens)
    rids = ["a", "b", "c"]
    for rid in rids:
        one.ask(rid, [8, 9, 10], 2)
        while rid not in one.d.tokens:
            one.d.receive()
    one.finish("running", *rids)
    timings = [one.d.last[rid].timing for rid in rids]
    handoffs_s = [timing["transfer_arrived_at_s"] - timing["transfer_last_at_s"] for timing in timings]
    assert (max(handoffs_s) > step_s / 2) == waits, handoffs_s
    one.check_empty()


@pytest.mark.parametrize("prefix", ["none", "kv_radix"])
@pytest.mark.parametrize("overlap", [True, False])
def test_decode_that_runs_out_of_pages_swaps_and_resumes_with_the_same_tokens(pair, prefix, overlap):
    one = pair(decode={"cache__prefix": prefix, "scheduler__overlap": overlap, "scheduler__reserve_output_tokens": 1})
    memory = one.d.worker.scheduler.memory
    num_free = 16
    one.d.worker.instance.runner._prefill._model.delay_s = 0.03  # all have come before the first is done
    hold = memory.cache.admit(memory.cache.keys([]), num_tokens=16 * (memory.cache.pages.num_free - num_free))
    asked = prompts(6, seed=8, shared=16, most=20)
    for i, prompt in enumerate(asked):
        one.ask(str(i), prompt, 40)
    one.finish(*map(str, range(6)))
    for i, prompt in enumerate(asked):
        assert one.d.tokens[str(i)] == expected_tokens(prompt, 40, VOCAB)
    assert sum(one.d.last[str(i)].num_swaps for i in range(6)) > 0
    memory.cache.release(hold)
    one.check_empty()


def test_a_sampled_request_draws_the_same_tokens_on_a_pair_as_alone(worker):
    sampling = SamplingParams(max_new_tokens=16, temperature=30.0, top_k=50, top_p=0.9, seed=1234, ignore_eos=True)
    prompt = prompts(1, seed=2)[0]
    alone = worker()
    alone.ask("a", prompt, sampling)
    alone.finish("a")
    one = Pair(worker)
    meeting = messages.Bootstrap("127.0.0.1", one.p.http_port, 7)
    for side in (one.p, one.d):
        side.ask("a", prompt, sampling, meeting)
    one.finish("a")
    assert one.d.tokens["a"] == alone.tokens["a"]
    assert alone.tokens["a"] != expected_tokens(prompt, 16, VOCAB), "it was sampled, not greedy"
