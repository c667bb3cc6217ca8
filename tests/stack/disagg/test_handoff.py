"""Two real processes, real NIXL over DRAM, real sockets."""

import time

import pytest

PAGE = 64


@pytest.fixture(scope="module")
def pair(start_lasting_half):
    """One prefill and one decode process for the tests that leave both alive."""
    return start_lasting_half("prefill"), start_lasting_half("decode")


def bootstrap(prefill, room):
    return {"host": "127.0.0.1", "port": prefill.port, "room": room}


def give_all(prefill, room, pages, slot=2, *, num_tokens, cached=0, extras="ab", chunk=2):
    for first in range(0, len(pages), chunk):
        prefill.send_pages(room=room, first_page_index=first, pages=pages[first : first + chunk])
    prefill.send_last(room=room, slot=slot, first_token=17, num_tokens=num_tokens, cached_tokens=cached, extras=extras)


def hand_over(prefill, decode, room, *, num_tokens, prefix_len, local, remote, slot=(2, 3)):
    prefill.expect(room=room, rid="r", num_prompt_tokens=num_tokens)
    decode.reserve(
        bootstrap=bootstrap(prefill, room),
        rid="r",
        prefix_len=prefix_len,
        pages=remote,
        slot=slot[1],
        num_prompt_tokens=num_tokens,
    )
    give_all(prefill, room, local, slot[0], num_tokens=num_tokens)
    arrived = decode.until(("Arrived", room))
    prefill.until(("Sent", room))
    return arrived


def test_pages_slot_and_record_arrive_exactly(pair):
    prefill, decode = pair
    untouched = {i: decode.read(pool="pages", id=i) for i in range(64)}
    local, remote = [4, 5, 6, 30, 9], [20, 21, 22, 40, 50]
    arrived = hand_over(prefill, decode, 1, num_tokens=5 * PAGE - 3, prefix_len=0, local=local, remote=remote)
    assert (arrived["first_token"], arrived["cached_tokens"], arrived["extras"]) == (17, 0, "ab")
    for mine, theirs in zip(local, remote, strict=True):
        assert prefill.read(pool="pages", id=mine) == decode.read(pool="pages", id=theirs)
    assert prefill.read(pool="slots", id=2) == decode.read(pool="slots", id=3)
    for other in set(untouched) - set(remote):
        assert decode.read(pool="pages", id=other) == untouched[other]
    stats = arrived["stats"]
    assert stats["num_bytes"] == 5 * 4096 + 10000
    assert stats["num_writes"] == 4
    assert stats["num_descriptors"] == 1 + 2 + 1 + 1  # pages 4-5, pages 6 and 30, page 9, the slot


def test_only_what_decode_lacks_travels(pair):
    prefill, decode = pair
    before = decode.read(pool="pages", id=23)
    arrived = hand_over(
        prefill, decode, 2, num_tokens=5 * PAGE, prefix_len=3 * PAGE, local=[1, 2, 3, 10, 11], remote=[24, 25]
    )
    assert arrived["stats"]["num_bytes"] == 2 * 4096 + 10000
    assert decode.read(pool="pages", id=24) == prefill.read(pool="pages", id=10)
    assert decode.read(pool="pages", id=25) == prefill.read(pool="pages", id=11)
    assert decode.read(pool="pages", id=23) == before


def test_a_full_prefix_sends_no_page(pair):
    prefill, decode = pair
    arrived = hand_over(
        prefill, decode, 3, num_tokens=2 * PAGE, prefix_len=2 * PAGE, local=[7, 8], remote=[], slot=(4, 5)
    )
    assert (arrived["stats"]["num_bytes"], arrived["stats"]["num_descriptors"]) == (10000, 1)
    assert decode.read(pool="slots", id=5) == prefill.read(pool="slots", id=4)


def test_one_long_run_is_one_descriptor(pair):
    prefill, decode = pair
    prefill.expect(room=4, rid="r", num_prompt_tokens=32 * PAGE)
    give_all(prefill, 4, list(range(16, 48)), num_tokens=32 * PAGE, chunk=32)  # before decode has said anything
    decode.reserve(
        bootstrap=bootstrap(prefill, 4),
        rid="r",
        prefix_len=0,
        pages=list(range(1, 33)),
        slot=3,
        num_prompt_tokens=32 * PAGE,
    )
    assert decode.until(("Arrived", 4))["stats"]["num_descriptors"] == 2


def test_a_room_is_used_once(pair):
    prefill, decode = pair
    hand_over(prefill, decode, 5, num_tokens=PAGE, prefix_len=0, local=[1], remote=[1])
    refused = prefill.expect(room=5, rid="r", num_prompt_tokens=PAGE)
    assert "room of its own" in refused["refused"]
    again = decode.reserve(
        bootstrap=bootstrap(prefill, 5), rid="r", prefix_len=0, pages=[1], slot=1, num_prompt_tokens=PAGE
    )
    assert "room of its own" in again["refused"]


def test_unequal_prompts_fail_on_both_sides_with_both_lengths(pair):
    prefill, decode = pair
    prefill.expect(room=6, rid="r", num_prompt_tokens=PAGE)
    decode.reserve(
        bootstrap=bootstrap(prefill, 6), rid="r", prefix_len=0, pages=[1, 2], slot=1, num_prompt_tokens=PAGE + 1
    )
    failed, _ = decode.until(("Failed", 6), ("Released", 6))
    assert "64 tokens on prefill and 65 on decode" in failed["reason"]
    assert "64 tokens on prefill and 65 on decode" in prefill.until(("Failed", 6))["reason"]


def test_an_engine_failure_reaches_decode_before_any_timeout(pair):
    prefill, decode = pair
    prefill.expect(room=7, rid="r", num_prompt_tokens=PAGE)
    decode.reserve(bootstrap=bootstrap(prefill, 7), rid="r", prefix_len=0, pages=[1], slot=1, num_prompt_tokens=PAGE)
    prefill.until(("Reserved", 7))
    start = time.monotonic()
    prefill.fail(room=7, reason="out of luck", status=500)
    failed, _ = decode.until(("Failed", 7), ("Released", 7))
    assert (failed["reason"], failed["status"]) == ("out of luck", 500)
    assert time.monotonic() - start < 1.0


@pytest.mark.parametrize("stage", ["before_request", "reserved", "sending"])
def test_cancel_on_decode_releases_at_every_stage(pair, stage):
    prefill, decode = pair
    room = {"before_request": 20, "reserved": 21, "sending": 22}[stage]
    if stage != "before_request":
        prefill.expect(room=room, rid="r", num_prompt_tokens=3 * PAGE)
    decode.reserve(
        bootstrap=bootstrap(prefill, room), rid="r", prefix_len=0, pages=[1, 2, 3], slot=1, num_prompt_tokens=192
    )
    if stage == "sending":
        prefill.send_pages(room=room, first_page_index=0, pages=[1, 2])
    decode.cancel(room=room, reason="client gone")
    assert decode.until(("Released", room), timeout=2)["confirmed"]
    if stage == "before_request":
        prefill.expect(room=room, rid="r", num_prompt_tokens=3 * PAGE)
    failed = prefill.until(("Failed", room))
    assert failed["status"] == 499
    assert not [e for e in decode.events if e["room"] == room and e["event"] == "Failed"]


def test_a_request_that_reaches_one_side_alone_fails_in_time(pair):
    prefill, decode = pair
    prefill.expect(room=30, rid="r", num_prompt_tokens=PAGE)
    decode.reserve(bootstrap=bootstrap(prefill, 31), rid="r", prefix_len=0, pages=[1], slot=1, num_prompt_tokens=PAGE)
    assert "no decode instance" in prefill.until(("Failed", 30))["reason"]
    failed, released = decode.until(("Failed", 31), ("Released", 31))
    assert "did not reach the prefill" in failed["reason"] and released["confirmed"]


def test_an_announced_request_is_waited_for(pair):
    prefill, decode = pair
    prefill.expect(room=32, rid="r", num_prompt_tokens=PAGE)
    decode.announce(bootstrap=bootstrap(prefill, 32), rid="r", num_prompt_tokens=PAGE)
    give_all(prefill, 32, [1], num_tokens=PAGE)
    time.sleep(4.5)  # longer than the bootstrap timeout
    decode.reserve(bootstrap=bootstrap(prefill, 32), rid="r", prefix_len=0, pages=[9], slot=1, num_prompt_tokens=PAGE)
    assert decode.until(("Arrived", 32))["stats"]["wait_s"] > 4


def test_three_hundred_rooms_leave_nothing_behind(pair):
    prefill, decode = pair
    for room in range(100, 120):
        hand_over(prefill, decode, room, num_tokens=2 * PAGE, prefix_len=0, local=[1, 2], remote=[3, 4])
    before = prefill.info(), decode.info()
    for room in range(120, 420):
        hand_over(prefill, decode, room, num_tokens=2 * PAGE, prefix_len=0, local=[1, 2], remote=[3, 4])
    time.sleep(0.7)  # two beats: acknowledgements are in
    after = prefill.info(), decode.info()
    for old, new in zip(before, after, strict=True):
        assert new["counters"]["disagg_rooms"] == 0
        assert new["writes"] == 0
        assert (new["threads"], new["fds"], new["nixl_peers"]) == (old["threads"], old["fds"], old["nixl_peers"])
        assert new["resident"] - old["resident"] < 4 * 2**20
    assert after[0]["counters"]["disagg_unacknowledged"] == 0
