"""One room on decode: its data, and what each action of its table does.

Knows nothing of lookups or connections: a `Link` is whatever says things to one prefill instance.
"""

from dataclasses import dataclass
from typing import Protocol

from stack.config import DisaggConfig
from stack.disagg.decode_states import Action, Event, State, step
from stack.disagg.events import Arrived, DecodeEvent, Failed, Released
from stack.disagg.messages import Abort, Announce, Done, Received, Reserve, ToPrefill

DEAD_HOLD_S = 0.5
"""How long memory is held after a peer's death: its last bytes may still sit in this machine's receive buffers."""


class Link(Protocol):
    """A connection to one prefill instance."""

    instance: str

    def next_seq(self) -> int:
        """The next number in the order of beats, announcements and reservations."""
        ...

    def say(self, message: ToPrefill) -> None:
        """Send; a lost message is repaired by the next beat."""
        ...


class Tell(Protocol):
    """Takes an event for the engine."""

    def __call__(self, event: DecodeEvent) -> None:
        """Return at once."""
        ...


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the room's cache and state go."""

    prefix_len: int
    pages: list[int]
    slot: int


@dataclass(slots=True)
class DecodeRoom:
    """One attempt at one request."""

    room: int
    num_prompt_tokens: int
    config: DisaggConfig
    tell: Tell
    state: State = State.NEW
    deadline_s: float | None = None
    link: Link | None = None
    memory: Memory | None = None
    done: Done | None = None
    failure: tuple[str, int] = ("the transfer failed", 500)
    reason: str = ""
    peer_is_dead: bool = False
    was_confirmed: bool = True

    def apply(self, event: Event, now: float) -> None:
        """Take one step of the table and do what it says."""
        before = self.state
        self.state, actions = step(before, event)
        if self.state is not before:
            self.deadline_s = self._deadline(before, now)
        if before is State.HOLDING and event is Event.DEADLINE:
            self.was_confirmed = self.peer_is_dead
        for action in actions:
            self._act(action, now)

    def fail(self, event: Event, reason: str, status: int, now: float) -> None:
        """Apply an event that ends the room, with the reason the engine is told."""
        self.failure = (reason, status)
        self.apply(event, now)

    def still_alive(self, now: float) -> None:
        """Prefill is at work on the room."""
        if self.state in (State.ANNOUNCED, State.ASKED):
            self.deadline_s = now + self.config.transfer_timeout_s

    def _deadline(self, before: State, now: float) -> float | None:
        match self.state:
            case State.PLANNED | State.LOOKUP:
                return now + self.config.bootstrap_timeout_s if before is State.NEW else self.deadline_s
            case State.ANNOUNCED | State.ASKED:
                return now + self.config.transfer_timeout_s
            case State.PARTING:
                return self.deadline_s
            case _:
                return None

    def _act(self, action: Action, now: float) -> None:
        match action:
            case Action.SAY_ANNOUNCE | Action.SAY_RESERVE | Action.SAY_ABORT | Action.SAY_RECEIVED:
                if self.link is not None:
                    self.link.say(self._saying(action, self.link))
            case Action.TELL_ARRIVED if self.done is not None:
                done = self.done
                self.tell(Arrived(self.room, done.first_token, done.cached_tokens, done.extras, done.stats))
            case Action.TELL_FAILED:
                self.tell(Failed(self.room, *self.failure))
            case Action.TELL_RELEASED:
                self.tell(Released(self.room, self.was_confirmed))
            case Action.HOLD:
                self.deadline_s = now + self.config.abort_ack_timeout_s
            case Action.HOLD_BRIEFLY:
                self.peer_is_dead = True
                self.deadline_s = now + DEAD_HOLD_S

    def _saying(self, action: Action, link: Link) -> ToPrefill:
        to, room = link.instance, self.room
        if action is Action.SAY_ABORT:
            return Abort(to=to, room=room, reason=self.reason or self.failure[0])
        if action is Action.SAY_RECEIVED:
            return Received(to=to, room=room)
        if action is Action.SAY_ANNOUNCE:
            return Announce(to=to, seq=link.next_seq(), room=room, num_prompt_tokens=self.num_prompt_tokens)
        assert self.memory is not None
        return Reserve(
            to=to,
            seq=link.next_seq(),
            room=room,
            prefix_len=self.memory.prefix_len,
            pages=self.memory.pages,
            slot=self.memory.slot,
            num_prompt_tokens=self.num_prompt_tokens,
        )
