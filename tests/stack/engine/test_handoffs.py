"""The decode side looks at arrivals every so many steps while it steps, and always when it does not."""

import pytest

from stack.core.clock import MonotonicClock
from stack.engine.failures import FailureLog
from stack.engine.handoffs import DecodeSide


class Handoff:
    def __init__(self):
        self.polls = 0

    def poll(self):
        self.polls += 1
        return []


class Idle:
    """A scheduler with `num_under_way` steps and nobody to admit."""

    num_under_way = 1

    def reserve(self):
        return []


@pytest.mark.parametrize(("interval", "polls"), [(1, 12), (3, 4), (100, 0)])
def test_arrivals_are_polled_every_interval_steps(interval, polls):
    handoff = Handoff()
    side = DecodeSide(handoff, Idle(), None, FailureLog(MonotonicClock()), polling_interval=interval)
    for _ in range(12):
        side.before_plan()
    assert handoff.polls == polls


def test_an_idle_instance_polls_every_turn():
    handoff, scheduler = Handoff(), Idle()
    scheduler.num_under_way = 0
    side = DecodeSide(handoff, scheduler, None, FailureLog(MonotonicClock()), polling_interval=100)
    side.before_plan()
    assert handoff.polls == 1
