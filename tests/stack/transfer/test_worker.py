import queue
import time

import pytest
import torch

from stack.core.clock import MonotonicClock
from stack.transfer import Pools, Spans, TransferAgent, TransferWorker, Write

PAGES, PAGE_BYTES, SLOTS, SLOT_BYTES = 64, 4096, 8, 10000
FOREVER = float("inf")


class Source:
    """A worker over a real agent whose page i is full of i."""

    def __init__(self, **settings):
        pages = torch.arange(PAGES, dtype=torch.uint8)[:, None].expand(PAGES, PAGE_BYTES).contiguous()
        slots = torch.full((SLOTS, SLOT_BYTES), 7, dtype=torch.uint8)
        self.tensors = (pages, slots)
        self.agent = TransferAgent(Pools(pages=Spans.of_tensor(pages), slots=Spans.of_tensor(slots)))
        self.outcomes = queue.SimpleQueue()
        self.worker = TransferWorker(self.agent, MonotonicClock(), self.outcomes.put, **settings)

    def add(self, name, target, lease=FOREVER):
        self.worker.add_peer(name, target.metadata, target.pools)
        self.worker.extend_lease(name, lease)

    def write(self, ticket, peer, local=(1,), remote=(1,), room=1):
        self.worker.submit(
            Write(ticket=ticket, room=room, peer=peer, pool="pages", local_ids=list(local), remote_ids=list(remote))
        )

    def outcome(self, timeout=10):
        return self.outcomes.get(timeout=timeout)


@pytest.fixture
def make_source():
    sources = []

    def make(**settings):
        sources.append(Source(**settings))
        return sources[-1]

    yield make
    for source in sources:
        source.worker.close()
        assert not source.worker.is_alive


def test_a_write_reports_bytes_descriptors_and_times(make_source, start_target):
    source, target = make_source(), start_target()
    source.add("d", target)
    source.write(1, "d", range(1, 11), range(20, 30))
    outcome = source.outcome()
    assert (outcome.ticket, outcome.error, outcome.num_descriptors) == (1, "", 1)
    assert outcome.num_bytes == 10 * PAGE_BYTES
    assert 0 < outcome.post_s <= outcome.complete_s
    assert target.read("pages", 20) == bytes([1]) * PAGE_BYTES


def test_writes_wait_for_the_lease(make_source, start_target):
    source, target = make_source(), start_target()
    source.add("d", target, lease=0.0)
    source.write(1, "d")
    with pytest.raises(queue.Empty):
        source.outcome(timeout=0.3)
    assert target.read("pages", 1) == bytes([0xEE]) * PAGE_BYTES
    source.worker.extend_lease("d", FOREVER)
    assert source.outcome().error == ""


def test_cancel_ends_what_was_not_posted_and_writes_nothing(make_source, start_target):
    source, target = make_source(delay_s=0.5), start_target()
    source.add("d", target)
    source.write(1, "d", room=5)
    source.write(2, "d", remote=[2], room=6)
    source.worker.cancel(5)
    first, second = source.outcome(), source.outcome()
    assert (first.ticket, first.error, first.settled) == (1, "cancelled", True)
    assert (second.ticket, second.error) == (2, "")
    assert second.queue_s >= 0.5
    assert target.read("pages", 1) == bytes([0xEE]) * PAGE_BYTES


def test_a_killed_peer_fails_its_writes_alone(make_source, start_target):
    source, dead, alive = make_source(), start_target(), start_target()
    source.add("dead", dead)
    source.add("alive", alive)
    source.write(0, "dead")
    assert source.outcome().error == ""
    dead.kill()
    for ticket in range(1, 9):
        source.write(ticket, "dead" if ticket % 2 else "alive", remote=[ticket])
    outcomes = {outcome.ticket: outcome for outcome in (source.outcome() for _ in range(8))}
    assert all(outcomes[ticket].error == "" for ticket in (2, 4, 6, 8))
    assert outcomes[7].error and all(outcome.settled for outcome in outcomes.values())


def test_a_peer_that_makes_no_progress_fails_only_after_its_siblings_settled(make_source, start_target):
    source, target = make_source(settle_s=1.0), start_target()
    source.add("d", target)
    target.ask(do="quiet")
    source.write(1, "d")
    time.sleep(0.2)
    source.worker.forget_peer("d")
    outcome = source.outcome()
    assert outcome.error
    source.write(2, "d")
    assert source.outcome().error == "the peer has gone"


def test_nothing_leaks_over_three_hundred_writes(make_source, start_target):
    source, target = make_source(), start_target()
    source.add("d", target)
    for ticket in range(300):
        source.write(ticket, "d", [ticket % PAGES], [(ticket * 7) % PAGES], room=ticket)
    assert sorted(source.outcome().ticket for _ in range(300)) == list(range(300))
    assert not source.worker._running and not source.worker._waiting
    assert source.agent.num_peers == 1


def test_an_unknown_peer_is_an_error(make_source):
    source = make_source()
    source.write(1, "nobody")
    assert source.outcome().error == "the peer has gone"
