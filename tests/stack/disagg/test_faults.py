"""Either process killed, stopped or restarted at every stage; messages lost and repeated on the wire."""

import itertools
import time

import pytest
import zmq

from tests.support.wire import Wire, lose_once, pass_on

PAGE = 64
ROOMS = itertools.count(1000)


def bootstrap(prefill, room):
    return {"host": "127.0.0.1", "port": prefill.port, "room": room}


def reserve(prefill, decode, room, pages=(1, 2), slot=1):
    return decode.reserve(
        bootstrap=bootstrap(prefill, room),
        rid="r",
        prefix_len=0,
        pages=list(pages),
        slot=slot,
        num_prompt_tokens=len(pages) * PAGE,
    )


def give(prefill, room, pages=(5, 6)):
    prefill.send_pages(room=room, first_page_index=0, pages=list(pages))
    prefill.send_last(room=room, slot=1, first_token=3, num_tokens=len(pages) * PAGE, cached_tokens=0, extras="")


def completes(prefill, decode, room):
    prefill.expect(room=room, rid="r", num_prompt_tokens=2 * PAGE)
    reserve(prefill, decode, room)
    give(prefill, room)
    arrived = decode.until(("Arrived", room))
    prefill.until(("Sent", room))
    assert decode.read(pool="pages", id=1) == prefill.read(pool="pages", id=5)
    return arrived


def test_prefill_killed_at_each_stage_frees_decode_and_a_restart_on_the_same_port_serves(start_half):
    decode = start_half("decode")
    prefill = start_half("prefill", **{"disagg.delay_s": 0.5})
    port = prefill.port
    completes(prefill, decode, 1)
    prefill.expect(room=2, rid="r", num_prompt_tokens=2 * PAGE)
    reserve(prefill, decode, 2, pages=(10, 11), slot=2)
    give(prefill, 2)  # the delay keeps the writes back
    reserve(prefill, decode, 3, pages=(12, 13), slot=3)  # the request itself never came
    prefill.until(("Reserved", 2))
    prefill.kill()
    start = time.monotonic()
    for room in (2, 3):
        failed, released = decode.until(("Failed", room), ("Released", room))
        assert failed["status"] == 503 and released["confirmed"]
    assert time.monotonic() - start < 2.0
    assert decode.info()["counters"] == {"disagg_rooms": 0, "disagg_peers": 0}
    again = start_half("prefill", http_port=port, fill=2)
    completes(again, decode, 4)


def test_decode_killed_at_each_stage_fails_its_rooms_alone(start_half):
    prefill, doomed, other = (
        start_half("prefill", **{"disagg.delay_s": 0.2}),
        start_half("decode"),
        start_half("decode"),
    )
    completes(prefill, doomed, 1)
    for room in (2, 3):
        prefill.expect(room=room, rid="r", num_prompt_tokens=2 * PAGE)
    reserve(prefill, doomed, 2)
    prefill.until(("Reserved", 2))
    give(prefill, 2)
    doomed.kill()
    completes(prefill, other, 10)
    failed = prefill.until(("Failed", 2))
    assert failed["status"] == 500
    assert "no decode instance" in prefill.until(("Failed", 3))["reason"]
    assert prefill.info()["counters"]["disagg_peers"] == 1
    assert prefill.info()["nixl_peers"] == 1
    completes(prefill, start_half("decode"), 11)


def test_a_stopped_prefill_is_given_up_and_writes_nothing_after_it_goes_on(start_half):
    prefill, decode = start_half("prefill", **{"disagg.delay_s": 0.8}), start_half("decode")
    completes(prefill, decode, 1)
    poison = [decode.read(pool="pages", id=i) for i in (20, 21)]
    prefill.expect(room=2, rid="r", num_prompt_tokens=2 * PAGE)
    reserve(prefill, decode, 2, pages=(20, 21))
    prefill.until(("Reserved", 2))
    give(prefill, 2)  # written in 0.8 s
    prefill.stop()
    start = time.monotonic()
    failed = decode.until(("Failed", 2))
    assert "no sign of life" in failed["reason"] and time.monotonic() - start < 3.0
    released = decode.until(("Released", 2))
    assert not released["confirmed"] and time.monotonic() - start > 3.0
    prefill.go_on()
    time.sleep(1.5)
    assert [decode.read(pool="pages", id=i) for i in (20, 21)] == poison
    assert prefill.until(("Failed", 2))["status"] in (499, 500)
    completes(prefill, decode, 3)


def test_a_slow_transfer_is_waited_for_and_says_so(start_half):
    prefill, decode = start_half("prefill", **{"disagg.delay_s": 1.0}), start_half("decode")
    stats = completes(prefill, decode, 1)["stats"]
    assert stats["delay_s"] == 1.0 and stats["tail_s"] >= 1.0


def test_a_transfer_that_never_ends_is_given_up(start_half):
    prefill = start_half("prefill", **{"disagg.delay_s": 60.0, "disagg.transfer_timeout_s": 1.0})
    decode = start_half("decode")
    prefill.expect(room=1, rid="r", num_prompt_tokens=2 * PAGE)
    reserve(prefill, decode, 1)
    give(prefill, 1)
    failed, released = decode.until(("Failed", 1), ("Released", 1))
    assert failed["status"] == 504 and released["confirmed"]
    assert prefill.until(("Failed", 1))["status"] == 504


def test_a_prefill_that_appears_late_is_found(start_half):
    decode = start_half("decode")
    first = start_half("prefill")
    port = first.port
    first.kill()

    decode.reserve(
        bootstrap={"host": "127.0.0.1", "port": port, "room": 1},
        rid="r",
        prefix_len=0,
        pages=[1, 2],
        slot=1,
        num_prompt_tokens=2 * PAGE,
    )
    failed, released = decode.until(("Failed", 1), ("Released", 1))
    assert "nobody listens" in failed["reason"] and released["confirmed"]
    prefill = start_half("prefill", http_port=port)
    completes(prefill, decode, 2)


def test_a_different_layout_is_refused_with_both_values(start_half):
    """On both sides and long before the bootstrap timeout, whichever half of the request comes first."""
    prefill, decode = start_half("prefill", model="a"), start_half("decode", model="b", **{"cache.page_size": 128})
    for room in (1, 2):
        start = time.monotonic()
        if room == 1:
            prefill.expect(room=room, rid="r", num_prompt_tokens=2 * PAGE)
        where = bootstrap(prefill, room)
        decode.reserve(bootstrap=where, rid="r", prefix_len=0, pages=[1], slot=1, num_prompt_tokens=2 * PAGE)
        failures = [decode.until(("Failed", room), ("Released", room))[0]]
        if room == 2:
            prefill.expect(room=room, rid="r", num_prompt_tokens=2 * PAGE)
        failures.append(prefill.until(("Failed", room)))
        assert time.monotonic() - start < 3.0
        for failed in failures:
            assert failed["status"] == 500
            assert "model is a on prefill and b on decode" in failed["reason"]
            assert "page_size is 64 on prefill and 128 on decode" in failed["reason"]


def test_a_refusal_of_the_very_first_request_reaches_prefill_even_from_a_decode_that_ends(start_half):
    prefill, decode = start_half("prefill"), start_half("decode")
    start = time.monotonic()
    prefill.expect(room=1, rid="r", num_prompt_tokens=2 * PAGE)
    decode.refuse(bootstrap=bootstrap(prefill, 1), reason="this instance is shutting down")
    decode.close()
    assert prefill.until(("Failed", 1))["reason"] == "this instance is shutting down"
    assert time.monotonic() - start < 3.0


def test_pools_of_unequal_items_are_refused_with_both_sizes(start_half):
    prefill, decode = start_half("prefill"), start_half("decode", page_bytes=8192)
    reserve(prefill, decode, 1)
    failed, _ = decode.until(("Failed", 1), ("Released", 1))
    assert "4096 bytes on prefill and 8192 bytes on decode" in failed["reason"]


@pytest.fixture(scope="module")
def lasting_wire(start_lasting_half):
    """A prefill whose published control address is a `Wire`, and a decode."""
    real = {}
    wire = Wire(lambda: real["address"])
    wire.start()
    prefill, decode = start_lasting_half("prefill", address=wire.address), start_lasting_half("decode")
    real["address"] = prefill.info()["address"]
    yield prefill, decode, wire
    wire.close()


@pytest.fixture
def wired(lasting_wire):
    """Both halves, the wire in order again, and a number for a room."""
    prefill, decode, wire = lasting_wire
    wire.treat = pass_on
    completes(prefill, decode, next(ROOMS))
    yield prefill, decode, wire, next(ROOMS)
    wire.treat = pass_on


@pytest.mark.parametrize("tag", ["reserve", "done", "received", "beat", "pulse"])
def test_a_lost_message_costs_a_beat_and_no_more(wired, tag):
    prefill, decode, wire, room = wired
    wire.treat = lose_once(tag)
    completes(prefill, decode, room)
    time.sleep(0.7)
    assert prefill.info()["counters"] == {"disagg_rooms": 0, "disagg_unacknowledged": 0, "disagg_peers": 1}


@pytest.mark.parametrize("tag", ["abort", "settled"])
def test_a_lost_word_about_an_abort_is_said_again(wired, tag):
    prefill, decode, wire, room = wired
    prefill.expect(room=room, rid="r", num_prompt_tokens=2 * PAGE)
    reserve(prefill, decode, room)
    prefill.until(("Reserved", room))
    wire.treat = lose_once(tag)
    decode.cancel(room=room, reason="client gone")
    assert decode.until(("Released", room), timeout=2)["confirmed"]
    assert prefill.until(("Failed", room))["status"] == 499


def test_a_lost_failure_is_said_again(wired):
    prefill, decode, wire, room = wired
    prefill.expect(room=room, rid="r", num_prompt_tokens=2 * PAGE)
    reserve(prefill, decode, room)
    prefill.until(("Reserved", room))
    wire.treat = lose_once("failed", "settled")
    prefill.fail(room=room, reason="out of luck", status=500)
    assert decode.until(("Failed", room))["reason"] == "out of luck"
    assert decode.until(("Released", room))["confirmed"]


def test_every_message_twice_changes_nothing(wired):
    prefill, decode, wire, room = wired
    wire.treat = lambda direction, tag, body: [body, body]
    rooms = [room, *itertools.islice(ROOMS, 9)]
    for each in rooms:
        completes(prefill, decode, each)
    for half in (prefill, decode):
        ended = [e["room"] for e in half.events if e["event"] in ("Sent", "Arrived") and e["room"] in rooms]
        assert sorted(ended) == rooms


def test_a_silent_wire_ends_rooms_on_both_sides_in_bounded_time(wired):
    prefill, decode, wire, room = wired
    prefill.expect(room=room, rid="r", num_prompt_tokens=2 * PAGE)
    reserve(prefill, decode, room)
    prefill.until(("Reserved", room))
    wire.treat = lambda direction, tag, body: []
    start = time.monotonic()
    assert "no sign of life" in decode.until(("Failed", room))["reason"]
    assert "no sign of life" in prefill.until(("Failed", room))["reason"]
    assert time.monotonic() - start < 3.0
    assert not decode.until(("Released", room))["confirmed"]
    wire.treat = pass_on
    completes(prefill, decode, next(ROOMS))


def test_noise_on_the_control_port_is_ignored(wired):
    prefill, decode, _, room = wired
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.connect(prefill.info()["address"])
    for noise in (b"", b"\x00" * 100, b"GET / HTTP/1.1", b"\x81\xa4type\xa5hello"):
        stranger.send(noise)
        stranger.send_multipart([noise, noise])
    stranger.close(200)
    context.term()
    completes(prefill, decode, room)
