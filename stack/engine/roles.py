"""What a worker's role adds to its loop: nobody to hand over to, a decode instance, or prefill instances."""

import random
import uuid
from dataclasses import dataclass

from stack.cache.synthetic import SyntheticContent
from stack.core.clock import Clock
from stack.disagg import DecodeHandoff, PrefillHandoff
from stack.engine.build import Instance
from stack.engine.failures import FailureLog
from stack.engine.handoffs import DecodeSide, NoSide, PrefillSide, Side
from stack.scheduler import Request
from stack.transfer import Pools, Spans


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where and by what name other instances meet this one; empty where they do not."""

    address: str = ""
    layout_hash: str = ""
    instance: str = ""


def open_side(instance: Instance, clock: Clock) -> tuple[Side, Meeting]:
    """The role's half of a hand-off, with its threads and sockets started."""
    config, scheduler = instance.config, instance.scheduler
    if config.role == "single":
        return NoSide(scheduler), Meeting(instance=uuid.uuid4().hex)
    if config.synthetic_admission:
        return NoSide(scheduler, _Invention(instance)), Meeting(instance=uuid.uuid4().hex)
    pools = pools_of(instance)
    layout = instance.layout.description
    if config.role == "prefill":
        sender = PrefillHandoff(config, layout, pools, clock)
        meeting = Meeting(sender.address, sender.layout_hash, sender.instance)
        return PrefillSide(sender, scheduler, instance.runner, FailureLog(clock)), meeting
    receiver = DecodeHandoff(config, layout, pools, clock)
    every = config.scheduler.polling_interval
    side = DecodeSide(receiver, scheduler, instance.runner, FailureLog(clock), polling_interval=every)
    return side, Meeting("", receiver.layout_hash, receiver.instance)


def pools_of(instance: Instance) -> Pools:
    """Both pools as numbers: whole pages, whole slots."""
    pages, states = instance.pages, instance.states
    return Pools(
        pages=Spans.of_tensor(pages.buffer.view(pages.num_pages + 1, -1)),
        slots=Spans.of_tensor(states.buffer.view(states.num_slots + 1, -1)),
    )


class _Invention:
    """Synthetic admission: random rows and states instead of a transfer, for measuring decode alone."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        seed = instance.config.model.random_seed
        self._draw = random.Random(seed)
        self._content = SyntheticContent(instance.pages, instance.states, seed)

    def __call__(self, request: Request) -> int:
        """Fill what the request does not share, in stream order; its first token."""
        lease = request.lease
        assert lease
        end = self._instance.scheduler.memory.pages_for(request.num_prompt)
        private, slot = list(lease.pages[lease.num_shared : end]), request.slot
        self._instance.runner.submit(lambda: self._content.fill(private, slot))
        self._instance.runner.import_extras(slot, b"")
        return self._draw.randrange(self._instance.geometry.vocab_size)
