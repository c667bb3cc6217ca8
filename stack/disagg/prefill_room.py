"""One room on prefill: its data, and what each action of its table does.

Knows nothing of other rooms or of peers' health. `Context` is what all rooms of an instance share.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from stack.config import DisaggConfig
from stack.disagg.events import Failed, PrefillEvent, Reserved, Sent
from stack.disagg.messages import Announce, Done, Reserve, RoomFailed, Settled, ToDecode, TransferStats
from stack.disagg.prefill_states import BOUNDED, LIVE, OVER, Action, Event, State, step
from stack.transfer import Outcome, Pools, Write

if TYPE_CHECKING:
    from stack.transfer.agent import PoolName


class PrefillEffects(Protocol):
    """Where consequences go; each call returns at once."""

    def send(self, peer: str, message: ToDecode) -> None:
        """Say something to a decode instance."""
        ...

    def tell(self, event: PrefillEvent) -> None:
        """Tell the engine."""
        ...

    def submit(self, write: Write) -> None:
        """Queue a write; its outcome comes back through `PrefillCore.outcome`."""
        ...

    def cancel(self, room: int) -> None:
        """End the room's writes that have not started."""
        ...

    def add_peer(self, peer: str, metadata: bytes, pools: Pools) -> None:
        """A decode instance may be written to."""
        ...

    def forget_peer(self, peer: str) -> None:
        """A decode instance is gone."""
        ...

    def extend_lease(self, peer: str, until_s: float) -> None:
        """Posts to this peer are allowed up to a time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What all rooms of an instance share."""

    instance: str
    config: DisaggConfig
    page_size: int
    effects: PrefillEffects
    tickets: Iterator[int]
    """Numbers for writes, never used twice."""


@dataclass(frozen=True, slots=True)
class Record:
    """What decode gets when all is written."""

    slot: int
    first_token: int
    cached_tokens: int
    extras: bytes


@dataclass(slots=True)
class PrefillRoom:
    """One attempt at one request. `peer` is the decode instance that claimed it, or empty."""

    room: int
    born_s: float
    context: Context
    state: State = State.NEW
    deadline_s: float | None = None
    num_prompt_tokens: int = 0
    peer: str = ""
    peer_seq: int = -1
    reserve: Reserve | None = None
    record: Record | None = None
    pending: list[tuple[int, list[int]]] = field(default_factory=list)
    num_placed: int = 0
    outstanding: set[int] = field(default_factory=set)
    moved_s: float = 0.0
    """When a write last ended, or the first of several started."""
    last_s: float = 0.0
    stats: TransferStats = field(default_factory=TransferStats)
    failure: tuple[str, int] = ("prefill has ended the request and keeps no record of it", 500)

    @property
    def is_live(self) -> bool:
        """Whether a result may still come."""
        return self.state in LIVE

    @property
    def is_over(self) -> bool:
        """Whether only a tombstone is left."""
        return self.state in OVER

    def apply(self, event: Event, now: float) -> None:
        """Take one step of the table and do what it says."""
        before = self.state
        self.state, actions = step(before, event)
        reached = self.state
        if reached is not before:
            self.deadline_s = self._deadline(now)
        for action in actions:
            if self.state is reached:  # an action may have failed the room
                self._act(action, now)
        if self.state in (State.CLOSING, State.DRAINING) and not self.outstanding:
            self.apply(Event.WRITTEN, now)
        if self.is_over:
            self.pending.clear()
            self.reserve = self.record = None

    def write_ended(self, outcome: Outcome, now: float) -> None:
        """One of the room's writes ended."""
        self.outstanding.discard(outcome.ticket)
        self.moved_s = now
        event = None
        if not outcome.settled:
            self._blame(f"a transfer was given up: {outcome.error}", 500)
            event = Event.UNSETTLED
        elif outcome.error:
            self._blame(f"a transfer failed: {outcome.error}", 500)
            event = Event.WRITE_ERROR
        else:
            self.stats = _added(self.stats, outcome)
        if event is not None:
            self.apply(event, now)
        elif self.state in (State.CLOSING, State.DRAINING) and not self.outstanding:
            self.apply(Event.WRITTEN, now)

    def problem(self, message: Announce | Reserve) -> tuple[str, int] | None:
        """Why decode's claim cannot be served, if so."""
        unsaid = isinstance(message, Announce) and not message.num_prompt_tokens
        if self.num_prompt_tokens and self.num_prompt_tokens != message.num_prompt_tokens and not unsaid:
            return unequal_prompts(self.num_prompt_tokens, message.num_prompt_tokens)
        if isinstance(message, Announce) or self.reserve is not None:
            return None
        size = self.context.page_size
        needed = -(-message.num_prompt_tokens // size) - message.prefix_len // size
        if message.prefix_len % size == 0 and needed == len(message.pages):
            return None
        return (
            f"decode reserved {len(message.pages)} pages of {size} tokens for a prompt of {message.num_prompt_tokens} "
            f"of which it has {message.prefix_len}; it should be {needed}"
        ), 500

    def fail(self, event: Event, reason: str, status: int, now: float) -> None:
        """Apply an event that ends the room, with the reason that both sides will give."""
        self._blame(reason, status)
        self.apply(event, now)

    def write_pages(self, now: float) -> None:
        """Write the pages that were handed over and that decode does not have."""
        if self.state not in (State.OPEN, State.CLOSING) or self.reserve is None:
            return
        skip = self.reserve.prefix_len // self.context.page_size
        for first, pages in self.pending:
            start = max(skip - first, 0)
            local = pages[start:]
            remote = self.reserve.pages[first + start - skip :][: len(local)]
            if len(local) != len(remote):
                self._miscounted(self.num_placed + len(local), now)
                return
            if local:
                self.num_placed += len(local)
                self._submit("pages", local, remote, now)
        self.pending.clear()

    def _write_last(self, now: float) -> None:
        assert self.reserve is not None and self.record is not None
        if self.num_placed != len(self.reserve.pages):
            self._miscounted(self.num_placed, now)
        else:
            self._submit("slots", [self.record.slot], [self.reserve.slot], now)

    def _miscounted(self, num_given: int, now: float) -> None:
        assert self.reserve is not None
        self.pending.clear()
        reason = f"prefill handed over {num_given} pages where decode waits for {len(self.reserve.pages)}"
        self.fail(Event.WRITE_ERROR, reason, 500, now)

    def _submit(self, pool: "PoolName", local: list[int], remote: list[int], now: float) -> None:
        if not self.outstanding:
            self.moved_s = now
        ticket = next(self.context.tickets)
        self.outstanding.add(ticket)
        self.context.effects.submit(
            Write(ticket=ticket, room=self.room, peer=self.peer, pool=pool, local_ids=local, remote_ids=remote)
        )

    def _blame(self, reason: str, status: int) -> None:
        if self.is_live or self.state is State.NEW:
            self.failure = (reason, status)

    def _deadline(self, now: float) -> float | None:
        config = self.context.config
        if self.state in BOUNDED:
            return now + config.bootstrap_timeout_s
        if self.state is State.READY and not self.peer:
            return self.deadline_s
        if self.state is State.SENT:
            return now + config.transfer_timeout_s
        return None

    def _act(self, action: Action, now: float) -> None:
        effects = self.context.effects
        match action:
            case Action.STOP_CLOCK:
                self.deadline_s = None
            case Action.TELL_RESERVED if self.reserve is not None:
                effects.tell(Reserved(self.room, self.reserve.prefix_len))
            case Action.TELL_SENT:
                effects.tell(Sent(self.room, self.stats))
            case Action.TELL_FAILED:
                effects.tell(Failed(self.room, *self.failure))
            case Action.WRITE_PAGES:
                self.write_pages(now)
            case Action.WRITE_LAST:
                self._write_last(now)
            case Action.CANCEL_WRITES:
                effects.cancel(self.room)
            case Action.CLOSE_STATS:
                delay_s = self.context.config.delay_s
                self.stats = msgspec.structs.replace(
                    self.stats, tail_s=now - self.last_s, last_at_s=self.last_s, delay_s=delay_s
                )
            case Action.SAY_DONE | Action.SAY_FAILED | Action.SAY_SETTLED if self.peer:
                effects.send(self.peer, self._saying(action))

    def _saying(self, action: Action) -> ToDecode:
        sender, room = self.context.instance, self.room
        if action is Action.SAY_SETTLED:
            return Settled(sender=sender, room=room)
        if action is Action.SAY_FAILED:
            return RoomFailed(sender=sender, room=room, reason=self.failure[0], status=self.failure[1])
        assert self.record is not None
        return Done(
            sender=sender,
            room=room,
            first_token=self.record.first_token,
            cached_tokens=self.record.cached_tokens,
            extras=self.record.extras,
            stats=self.stats,
        )


def unequal_prompts(prefill: int, decode: int) -> tuple[str, int]:
    """The failure of a room whose halves see different prompts."""
    return f"the prompt has {prefill} tokens on prefill and {decode} on decode; both need the same tokenizer", 500


def _added(stats: TransferStats, outcome: Outcome) -> TransferStats:
    return msgspec.structs.replace(
        stats,
        num_bytes=stats.num_bytes + outcome.num_bytes,
        num_descriptors=stats.num_descriptors + outcome.num_descriptors,
        num_writes=stats.num_writes + 1,
        post_s=stats.post_s + outcome.post_s,
        write_s=stats.write_s + outcome.complete_s,
    )
