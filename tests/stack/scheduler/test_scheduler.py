from itertools import chain, repeat

import pytest

from stack.core import ConfigError, RequestError


def saying(tokens):
    return chain(tokens, repeat(9)).__next__


def test_a_long_prompt_is_cut_at_page_multiples_within_the_budget(bench):
    one = bench(scheduler__chunk_tokens=20)
    one.ask(50, 1)
    one.finish()
    chunks = [(row.start, row.end) for plan in one.runner.plans for row in plan.prefill]
    assert chunks == [(0, 16), (16, 32), (32, 50)]


def test_several_prompts_share_a_chunk(bench):
    one = bench(scheduler__chunk_tokens=32)
    for _ in range(3):
        one.ask(10, 1)
    one.finish()
    assert [len(plan.prefill) for plan in one.runner.plans if plan.kind == "prefill"] == [3]


def test_max_prefill_tokens_bounds_a_step_as_the_chunk_budget_does(bench):
    one = bench(scheduler__chunk_tokens=16, scheduler__max_prefill_tokens=16)
    for _ in range(4):
        one.ask(12, 1)
    one.finish()
    assert all(plan.num_tokens <= 16 for plan in one.runner.plans if plan.kind == "prefill")


def test_decode_is_not_starved_by_a_stream_of_long_prompts(bench):
    one = bench(num_pages=400, max_running=6)
    one.ask(4, 40)
    one.turn()
    for _ in range(30):
        one.ask(200, 1)
    while "0" not in one.last:
        one.turn()
    kinds = one.runner.kinds
    longest_wait = max(len(run) for run in "".join(k[0] for k in kinds).split("d"))
    assert longest_wait <= 1


def test_a_short_prompt_waits_only_for_those_before_it(bench):
    one = bench(num_pages=400, num_slots=64, max_running=50)
    first = [one.ask(200, 1) for _ in range(3)]
    short = one.ask(3, 1)
    later = [one.ask(200, 1) for _ in range(20)]
    one.finish()
    order = list(one.last)
    assert order.index(short) <= len(first)
    assert all(order.index(short) < order.index(rid) for rid in later)


def test_requests_finish_in_order_of_arrival_when_alike(bench):
    one = bench(max_running=2, num_slots=3)
    rids = [one.ask(9, 5) for _ in range(7)]
    one.finish()
    assert list(one.last) == rids


def test_a_full_queue_is_answered_503(bench):
    one = bench(scheduler__max_queued=2)
    one.ask(4)
    one.ask(4)
    with pytest.raises(RequestError, match="queue is full") as caught:
        one.ask(4)
    assert caught.value.status == 503


@pytest.mark.parametrize(
    ("prompt", "count", "says"),
    [
        ([], 4, "empty"),
        ([5, 1000], 4, "between 0 and 999"),
        ([5, -1], 4, "between 0 and 999"),
        (list(range(250)), 10, "must not exceed 256"),
    ],
)
def test_a_request_that_can_never_run_is_refused_with_a_reason(bench, prompt, count, says):
    with pytest.raises(RequestError, match=says) as caught:
        bench().ask(prompt, count)
    assert caught.value.status == 400


def test_a_request_larger_than_all_pages_is_refused(bench):
    with pytest.raises(RequestError, match="instance has"):
        bench(num_pages=4).ask(30, 20)


def test_a_request_id_in_use_is_refused(bench):
    one = bench()
    one.ask(4)
    one.rids = iter(["0"])
    with pytest.raises(RequestError, match="already running"):
        one.ask(4)


def test_a_request_past_its_deadline_ends_with_504(bench):
    one = bench(scheduler__request_deadline_s=5.0)
    rid = one.ask(4, 100)
    while not one.last:
        one.turn()
        one.scheduler.expire()
    one.finish()
    assert (one.last[rid].finish, one.last[rid].status) == ("abort", 504)
    one.check_empty()


def test_a_chunk_budget_below_a_page_is_refused(bench):
    with pytest.raises(ConfigError, match=r"scheduler\.chunk_tokens"):
        bench(scheduler__chunk_tokens=4)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_small_limits_give_exactly_so_many_tokens(bench, count):
    one = bench()
    rid = one.ask(5, count)
    one.finish()
    assert len(one.tokens[rid]) == count
    assert one.last[rid].finish == "length"


def test_an_end_token_stops_and_is_named(bench):
    one = bench(draw=saying([7, 8, 1, 9, 9, 9, 9]))
    rid = one.ask(5, 50, ignore_eos=False)
    one.finish()
    assert one.tokens[rid] == [7, 8, 1]
    assert (one.last[rid].finish, one.last[rid].matched) == ("stop", 1)
    one.check_empty()


def test_ignore_eos_goes_on_and_named_stop_tokens_still_stop(bench):
    one = bench(draw=saying([1, 1, 44, 9, 9]))
    rid = one.ask(5, 50, stop_token_ids=(44,))
    one.finish()
    assert one.tokens[rid] == [1, 1, 44]


def test_end_tokens_before_the_minimum_are_ignored(bench):
    one = bench(draw=saying([1, 1, 1, 9, 9]))
    rid = one.ask(5, 50, ignore_eos=False, min_new_tokens=3)
    one.finish()
    assert one.tokens[rid] == [1, 1, 1]


def test_a_verify_never_gives_more_tokens_than_asked(bench):
    one = bench(width=4, num_pages=64)
    rids = [one.ask(5, count) for count in range(9)]
    one.finish()
    assert [len(one.tokens[rid]) for rid in rids] == list(range(9))
    assert one.last[rids[8]].num_verify >= 2
    one.check_empty()


def test_decode_swaps_the_youngest_and_prefill_is_queued_again(bench):
    one = bench(num_pages=14, max_running=4, scheduler__reserve_output_tokens=0)
    rids = [one.ask(16, 40) for _ in range(4)]
    one.finish()
    assert [len(one.tokens[rid]) for rid in rids] == [40] * 4
    totals = one.scheduler.book.totals
    assert totals.swaps > 0
    assert one.last[rids[0]].num_swaps == 0
    one.check_empty()


def test_a_swap_space_that_is_too_small_ends_the_youngest_with_503(bench):
    one = bench(num_pages=10, max_running=4, scheduler__reserve_output_tokens=0, cache__swap_bytes=0)
    rids = [one.ask(16, 40) for _ in range(3)]
    one.finish()
    assert one.last[rids[0]].finish == "length"
    ended = [one.last[rid] for rid in rids if one.last[rid].finish == "abort"]
    assert ended and all(message.status == 503 and "swap_bytes" in message.error for message in ended)
    one.check_empty()
