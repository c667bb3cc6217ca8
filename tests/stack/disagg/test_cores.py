"""Whatever happens to both halves of a hand-off, memory is safe and every room ends: at random, for many lives."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.disagg.prefill_room import Record
from tests.stack.disagg.world import CONFIG, OTHER_LAYOUT, World


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_happens_memory_is_safe_and_every_room_ends(seed):
    World(random.Random(seed)).run(300)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@settings(max_examples=20_000, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_happens_in_a_long_night_memory_is_safe_and_every_room_ends(seed):
    World(random.Random(seed)).run(1000)


STEPS_WITHOUT_A_WATCH = (
    "request_arrives",
    "decode_finds_memory",
    "prefill_computes",
    "message_arrives",
    "oldest_messages_arrive",
    "message_is_lost",
    "message_is_repeated",
    "answer_lookups",
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_a_mismatch_ends_both_halves_of_every_request_within_a_beat_with_both_values(seed):
    """In whatever order halves, greetings and answers come, are lost and are repeated."""
    world = World(random.Random(seed), decode=OTHER_LAYOUT)
    for name in world.random.choices(STEPS_WITHOUT_A_WATCH, k=60):
        getattr(world, name)()
    world.answer_lookups()
    world.talk()
    world.pass_time(CONFIG.heartbeat_interval_s)
    world.talk()
    assert set(world.decode.state.values()) <= {"over"} and not world.decode.links
    for room in world.decode.state:
        for side in (world.prefill, world.decode):
            if side is world.decode or room in side.given:
                reason, status = side.failures[room]
                assert "a is 1 on prefill and 2 on decode" in reason and status == 500


def test_the_simulated_world_lets_requests_through():
    """Otherwise the claims above would hold for want of anything happening."""
    worlds = [World(random.Random(seed)) for seed in range(20)]
    for world in worlds:
        world.run(300)
    assert sum(world.arrived for world in worlds) > 20


def test_a_prefill_that_slept_serves_a_second_link_of_the_same_decode_at_once():
    """Prefill remembers the numbers of the first link; those of the second must be taken for new."""
    world = World(random.Random(0))
    for _ in range(20):
        world.run_world()
        world.pass_time(1.0)
        world.start_decode(next(world.rooms), False) if not world.decode.links else None
    while world.decode.links:  # prefill sleeps: decode's messages wait, and decode closes the link
        world.decode.core.tick(world.now)
        world.now += 1.0
    world.run_world()
    room = next(world.rooms)
    world.start_prefill(room)
    world.start_decode(room, False)
    world.prefill.core.send_pages(room, 0, [0, 1, 2, 3], world.prefill.now)
    world.prefill.core.send_last(room, Record(0, 1, 0, b""), world.prefill.now)
    for _ in range(3):
        world.run_world()
    assert world.prefill.ended[room] == "Sent"
