"""Requests that one side refuses, or that have nobody on the other side: both halves end soon, and say why."""

import itertools
import random

import pytest

from stack.disagg.messages import Abort, Announce, Hello, Refused, Settled, Welcome
from stack.disagg.prefill_room import Record
from tests.stack.disagg.world import CONFIG, LAYOUT, OTHER_LAYOUT, POOLS, World

BEAT_S, BOTH_VALUES = CONFIG.heartbeat_interval_s, "a is 1 on prefill and 2 on decode"


def world_apart():
    return World(random.Random(0), LAYOUT, OTHER_LAYOUT)


def losing(*kinds):
    """The first message of each kind is lost."""
    left = list(kinds)

    def treat(message):
        if type(message) in left:
            left.remove(type(message))
            return []
        return [message]

    return treat


def twice(message):
    return [message, message]


def meet(world, room, order=("prefill", "decode"), announce=True):
    """Both halves arrive, decode's lookup is answered, and all is said that follows."""
    for side in order:
        world.start_prefill(room) if side == "prefill" else world.start_decode(room, announce)
        world.answer_lookups()
        world.talk()


def assert_both_end_with_both_values(world, room):
    for side in (world.prefill, world.decode):
        reason, status = side.failures[room]
        assert BOTH_VALUES in reason and status == 500
    assert world.decode.state[room] == "over" and world.prefill.ended[room] == "Failed"


def completes(world, room):
    meet(world, room, announce=False)
    world.prefill.core.send_pages(room, 0, [0, 1, 2, 3], world.prefill.now)
    world.prefill.core.send_last(room, Record(0, 1, 0, b""), world.prefill.now)
    for _ in range(2):
        world.run_world()
    return world.prefill.ended.get(room) == "Sent"


@pytest.mark.parametrize("announce", [True, False], ids=["announced", "reserved"])
@pytest.mark.parametrize("order", list(itertools.permutations(("prefill", "decode"))), ids="-".join)
def test_a_mismatch_ends_both_halves_without_waiting_whoever_is_first(order, announce):
    world = world_apart()
    meet(world, 1, order, announce)
    assert_both_end_with_both_values(world, 1)
    assert not world.decode.links


def test_a_mismatch_ends_a_prompt_that_was_computed_before_decode_came():
    world = world_apart()
    world.start_prefill(1)
    world.prefill.core.send_pages(1, 0, [0, 1, 2, 3], world.prefill.now)
    world.prefill.core.send_last(1, Record(0, 1, 0, b""), world.prefill.now)
    meet(world, 1, ["decode"])
    assert_both_end_with_both_values(world, 1)


@pytest.mark.parametrize("lost", [[Hello], [Refused], [Hello, Refused]], ids=str)
def test_a_lost_greeting_or_refusal_costs_a_beat(lost):
    world = world_apart()
    world.start_prefill(1)
    world.start_decode(1, True)
    world.answer_lookups()
    treat = losing(*lost)
    world.talk(treat)
    for _ in lost:
        world.pass_time(BEAT_S)
        world.talk(treat)
    assert_both_end_with_both_values(world, 1)


def test_a_mismatch_that_is_said_twice_starts_no_endless_greeting():
    world = world_apart()
    for room in range(5):
        world.start_prefill(room)
        world.start_decode(room, True)
        world.answer_lookups()
        world.talk(twice)
        assert_both_end_with_both_values(world, room)


def test_a_refusal_that_ends_no_room_is_not_greeted_again_before_the_next_beat():
    world = world_apart()
    world.start_decode(1, True)
    world.answer_lookups()
    world.all_messages_are_lost()
    for _ in range(10):
        world.decode.core.receive(world.prefill.name, Refused(sender=world.prefill.name, reason="no"), world.now)
    assert not world.network and 1 not in world.decode.failures
    world.pass_time(BEAT_S)
    assert [type(message) for *_, message in world.network] == [Hello]


def test_rooms_that_come_while_a_greeting_is_under_way_end_on_both_sides_too():
    world = world_apart()
    world.start_decode(1, True)
    world.answer_lookups()  # the greeting that is under way names room 1 alone
    for room in (2, 3):
        world.start_decode(room, False)
    for room in (1, 2, 3):
        world.start_prefill(room)
    world.talk()
    for room in (1, 2, 3):
        assert_both_end_with_both_values(world, room)


def test_a_mismatch_ends_no_room_that_belongs_to_another_decode():
    world = World(random.Random(0))
    meet(world, 1, announce=False)
    hello = Hello(to=world.prefill.name, layout=OTHER_LAYOUT, metadata=b"", pools=POOLS, rooms=[1])
    world.prefill.core.receive("stranger", hello, world.prefill.now)
    assert 1 not in world.prefill.ended


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_either_side_restarted_with_another_layout_is_refused_and_with_the_right_one_served(side):
    world = World(random.Random(0))
    assert completes(world, 1)
    other = {"prefill": ({"a": "2"}, "a is 2 on prefill and 1 on decode"), "decode": (OTHER_LAYOUT, BOTH_VALUES)}[side]
    restart(world, side, other[0])
    meet(world, 2)
    for half in (world.prefill, world.decode):
        assert other[1] in half.failures[2][0]
    restart(world, side, LAYOUT)
    assert completes(world, 3)


def restart(world, side, layout):
    """On the same address; decode hears that its connection is broken."""
    gone = world.prefill.name
    getattr(world, f"{side}_restarts")(layout)
    if side == "prefill":
        world.decode.core.disconnected(gone)
        world.run_world()


@pytest.mark.parametrize("announce", [True, False], ids=["announced", "reserved"])
@pytest.mark.parametrize("lost", [[], [Hello], [Welcome], [Abort], [Settled]], ids=str)
@pytest.mark.parametrize("order", list(itertools.permutations(("prefill", "decode"))), ids="-".join)
def test_prefill_hears_of_a_request_that_decode_gave_up_before_the_two_had_met(order, lost, announce):
    world = World(random.Random(0))
    for side in order:
        if side == "prefill":
            world.start_prefill(1)
        else:
            world.start_decode(1, announce)
            world.decode_gives_up()
            assert not world.decode.reserved  # its memory is free at once
    world.answer_lookups()
    treat = losing(*lost)
    world.talk(treat)
    for _ in lost:
        world.pass_time(BEAT_S)
        world.talk(treat)
    assert world.prefill.failures[1] == ("client gone", 499) or (
        lost == [Abort] and world.prefill.failures[1] == ("the decode instance gave the request up", 499)
    )
    assert world.decode.core.num_parting == 0 and 1 not in world.decode.failures


def test_prefill_hears_of_a_refusal_of_which_every_word_was_lost():
    world = World(random.Random(0))
    meet(world, 1, ["decode"])
    world.start_prefill(2)
    world.start_decode(2, True)
    world.decode.core.cancel(2, "refused", world.now)
    world.talk(losing(Announce, Abort))
    world.pass_time(BEAT_S)
    world.talk()
    assert world.prefill.failures[2][1] == 499


def test_a_room_given_up_towards_a_prefill_that_is_not_there_is_forgotten_in_time():
    world = World(random.Random(0))
    world.start_decode(1, False)
    world.decode_gives_up()
    assert world.decode.core.num_parting == 1
    world.answer_lookups(fails=True)
    assert world.decode.core.num_parting == 0


def test_a_request_without_any_decode_left_fails_after_three_beats():
    world = World(random.Random(0))
    assert completes(world, 1)
    beats_until_lost = pass_beats(world, lambda: world.prefill.core.num_peers == 0, decode_looks=False)
    assert beats_until_lost <= 4
    world.start_prefill(2)
    assert pass_beats(world, lambda: 2 in world.prefill.ended, decode_looks=False) <= 4
    assert world.prefill.failures[2] == ("the decode instance gives no sign of life, and no other is connected", 503)


def test_a_new_decode_that_comes_in_time_is_served_after_the_last_one_was_lost():
    world = World(random.Random(0))
    assert completes(world, 1)
    world.decode_restarts(LAYOUT)
    pass_beats(world, lambda: world.prefill.core.num_peers == 0)
    for _ in range(5):  # the loss is long ago when the request comes
        pass_beats(world, lambda: True)
    world.start_prefill(2)
    pass_beats(world, lambda: True)
    assert completes_on_decode(world, 2)
    world.start_prefill(3)  # the new one may ask for it yet
    for _ in range(5):
        pass_beats(world, lambda: True)
    assert 3 not in world.prefill.ended


def test_a_request_is_waited_for_while_another_decode_is_there_or_none_was_ever_seen():
    for known in (False, True):
        world = World(random.Random(0))
        if known:
            hello = Hello(to=world.prefill.name, layout=LAYOUT, metadata=b"", pools=POOLS)
            world.prefill.core.receive("another", hello, world.prefill.now)
        world.start_prefill(1)
        for _ in range(6):
            if known:
                world.prefill.core.receive("another", hello, world.prefill.now)
            world.pass_time(BEAT_S)
        assert 1 not in world.prefill.ended


def test_a_prefill_that_answers_no_greeting_fails_requests_after_three_beats():
    world = World(random.Random(0))
    world.start_decode(1, False)
    world.answer_lookups()
    assert pass_beats(world, lambda: 1 in world.decode.failures, prefill_looks=False, deaf=True) <= 4
    assert world.decode.failures[1] == ("the prefill instance gives no sign of life", 503)
    assert world.decode.state[1] == "over" and not world.decode.links


def completes_on_decode(world, room):
    meet(world, room, ["decode"], announce=False)
    world.prefill.core.send_pages(room, 0, [0, 1, 2, 3], world.prefill.now)
    world.prefill.core.send_last(room, Record(0, 1, 0, b""), world.prefill.now)
    for _ in range(2):
        world.run_world()
    return world.prefill.ended.get(room) == "Sent"


def pass_beats(world, holds, *, decode_looks=True, prefill_looks=True, deaf=False):
    """Beats until `holds`, at most 10; `deaf` loses all messages."""
    for beats in range(1, 11):
        world.pass_time(BEAT_S, decode_looks, prefill_looks)
        world.all_messages_are_lost() if deaf else world.talk()
        if holds():
            return beats
    raise AssertionError("it never holds")
