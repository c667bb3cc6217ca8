"""The life of a room on decode, as a table. What is not in the table is ignored.

The rule behind every row: once prefill may know the room's memory, that memory is free only when prefill has said that
it writes no more, when prefill is dead, or when the waiting time has run out.
"""

from enum import Enum, auto


class State(Enum):
    """Where a room stands."""

    NEW = auto()
    PLANNED = auto()
    """The request is here without memory; prefill is being looked up. Bounded in time."""
    ANNOUNCED = auto()
    """Prefill knows of it; no memory yet."""
    LOOKUP = auto()
    """Memory is reserved; prefill is being looked up. Bounded in time."""
    ASKED = auto()
    """Prefill knows the memory. Bounded by prefill's silence."""
    HOLDING = auto()
    """Ended, but prefill may still write. Bounded in time."""
    PARTING = auto()
    """Given up here while prefill may wait for it; prefill does not know its memory. Bounded in time."""
    CLOSED = auto()
    """Over. A tombstone."""


class Event(Enum):
    """What can happen to a room."""

    ANNOUNCE = auto()
    RESERVE = auto()
    JOINED = auto()
    """Prefill has been found and has welcomed us."""
    REFUSED = auto()
    """Prefill cannot be found, or does not want us."""
    DONE = auto()
    FAILED = auto()
    SETTLED = auto()
    UNKNOWN = auto()
    CANCEL = auto()
    DEADLINE = auto()
    PEER_LOST = auto()
    """No sign of life; it may still write."""
    PEER_DEAD = auto()
    """Its process is known to be gone."""


class Action(Enum):
    """What the core does on a transition, in order."""

    SAY_ANNOUNCE = auto()
    SAY_RESERVE = auto()
    SAY_ABORT = auto()
    SAY_RECEIVED = auto()
    TELL_ARRIVED = auto()
    TELL_FAILED = auto()
    TELL_RELEASED = auto()
    HOLD = auto()
    """Wait for prefill's word, at most the acknowledgement time."""
    HOLD_BRIEFLY = auto()
    """The peer is dead: wait only until bytes that the kernel still held have been taken in."""


S, E, A = State, Event, Action
Row = tuple[State, tuple[Action, ...]]

_ENDED_UNASKED: Row = (S.CLOSED, (A.TELL_FAILED, A.TELL_RELEASED))
_GIVEN_UP: Row = (S.HOLDING, (A.TELL_FAILED, A.SAY_ABORT, A.HOLD))

TABLE: dict[State, dict[Event, Row]] = {
    S.NEW: {E.ANNOUNCE: (S.PLANNED, ()), E.RESERVE: (S.LOOKUP, ())},
    S.PLANNED: {
        E.RESERVE: (S.LOOKUP, ()),
        E.JOINED: (S.ANNOUNCED, (A.SAY_ANNOUNCE,)),
        E.CANCEL: (S.PARTING, ()),
        E.REFUSED: (S.CLOSED, (A.TELL_FAILED,)),
        E.DEADLINE: (S.CLOSED, (A.TELL_FAILED,)),
        E.PEER_LOST: (S.CLOSED, (A.TELL_FAILED,)),
        E.PEER_DEAD: (S.CLOSED, (A.TELL_FAILED,)),
    },
    S.ANNOUNCED: {
        E.RESERVE: (S.ASKED, (A.SAY_RESERVE,)),
        E.UNKNOWN: (S.ANNOUNCED, (A.SAY_ANNOUNCE,)),
        E.CANCEL: (S.PARTING, (A.SAY_ABORT, A.HOLD)),
        E.FAILED: (S.CLOSED, (A.TELL_FAILED,)),
        E.SETTLED: (S.CLOSED, (A.TELL_FAILED,)),
        E.DEADLINE: (S.CLOSED, (A.TELL_FAILED, A.SAY_ABORT)),
        E.PEER_LOST: (S.CLOSED, (A.TELL_FAILED, A.SAY_ABORT)),
        E.PEER_DEAD: (S.CLOSED, (A.TELL_FAILED,)),
    },
    S.LOOKUP: {
        E.JOINED: (S.ASKED, (A.SAY_RESERVE,)),
        E.CANCEL: (S.PARTING, (A.TELL_RELEASED,)),
        E.REFUSED: _ENDED_UNASKED,
        E.DEADLINE: _ENDED_UNASKED,
        E.PEER_LOST: _ENDED_UNASKED,
        E.PEER_DEAD: _ENDED_UNASKED,
    },
    S.ASKED: {
        E.DONE: (S.CLOSED, (A.SAY_RECEIVED, A.TELL_ARRIVED)),
        E.UNKNOWN: (S.ASKED, (A.SAY_RESERVE,)),
        E.FAILED: (S.HOLDING, (A.TELL_FAILED, A.HOLD)),
        E.SETTLED: _ENDED_UNASKED,
        E.CANCEL: (S.HOLDING, (A.SAY_ABORT, A.HOLD)),
        E.DEADLINE: _GIVEN_UP,
        E.PEER_LOST: _GIVEN_UP,
        E.PEER_DEAD: (S.HOLDING, (A.TELL_FAILED, A.HOLD_BRIEFLY)),
    },
    S.HOLDING: {
        E.SETTLED: (S.CLOSED, (A.TELL_RELEASED,)),
        E.DONE: (S.CLOSED, (A.SAY_RECEIVED, A.TELL_RELEASED)),
        E.PEER_DEAD: (S.HOLDING, (A.HOLD_BRIEFLY,)),
        E.DEADLINE: (S.CLOSED, (A.TELL_RELEASED,)),
    },
    S.PARTING: {
        E.JOINED: (S.PARTING, (A.SAY_ABORT, A.HOLD)),
        E.RESERVE: (S.PARTING, (A.TELL_RELEASED,)),
        E.SETTLED: (S.CLOSED, ()),
        E.REFUSED: (S.CLOSED, ()),
        E.DEADLINE: (S.CLOSED, ()),
        E.PEER_LOST: (S.CLOSED, ()),
        E.PEER_DEAD: (S.CLOSED, ()),
    },
    S.CLOSED: {
        E.DONE: (S.CLOSED, (A.SAY_RECEIVED,)),
        E.RESERVE: (S.CLOSED, (A.TELL_RELEASED,)),
    },
}

WITHOUT_PEER = frozenset({S.PLANNED, S.LOOKUP, S.PARTING})
"""States in which prefill may not have been told."""


def step(state: State, event: Event) -> Row:
    """The next state and what to do. An event that means nothing in this state changes nothing."""
    return TABLE[state].get(event, (state, ()))
