"""The life of a room on prefill, as a table. What is not in it is ignored, which makes repeats and latecomers harmless.

A room has two parents that may come in any order, or never: the request over HTTP (`EXPECT`) and decode's word over the
control channel (`ANNOUNCE`, `RESERVE`). The engine's data (`LAST` when complete) may be ready before decode is.
"""

from enum import Enum, auto


class State(Enum):
    """Where a room stands."""

    NEW = auto()
    EXPECTED = auto()
    """The request is here; decode has said nothing. Bounded in time."""
    HEARD = auto()
    """Decode has announced it; the request is not here. Bounded in time."""
    OFFERED = auto()
    """Decode has reserved memory; the request is not here. Bounded in time."""
    WAITED = auto()
    """The request is here and decode will reserve when it can. Lasts as long as decode lives."""
    READY = auto()
    """All is computed and decode has not reserved. Bounded in time unless announced."""
    OPEN = auto()
    """Pages are being written as chunks finish."""
    CLOSING = auto()
    """All is handed over; writes are under way."""
    SENT = auto()
    """Complete; the record is kept until decode has it."""
    DRAINING = auto()
    """Failed; writes are under way, so decode's memory is not free yet."""
    FAILED = auto()
    """Failed, and nothing is written any more. A tombstone that answers latecomers."""
    MUTE = auto()
    """Failed with a write whose end is unknown: decode is never told that its memory is free."""
    CLOSED = auto()
    """Complete and acknowledged. A tombstone."""


class Event(Enum):
    """What can happen to a room."""

    EXPECT = auto()
    ANNOUNCE = auto()
    RESERVE = auto()
    LAST = auto()
    WRITTEN = auto()
    """No write is outstanding (only raised in CLOSING and DRAINING)."""
    WRITE_ERROR = auto()
    UNSETTLED = auto()
    """A write was given up without knowing its end."""
    STALLED = auto()
    """A write has not ended for too long."""
    FAIL = auto()
    """The engine gives up: its own error, or its client has gone."""
    ABORT = auto()
    """Decode gives up."""
    WAITING = auto()
    """Decode says that it still waits."""
    RECEIVED = auto()
    DEADLINE = auto()
    PEER_LOST = auto()


class Action(Enum):
    """What the core does on a transition, in order."""

    STOP_CLOCK = auto()
    TELL_RESERVED = auto()
    TELL_SENT = auto()
    TELL_FAILED = auto()
    CLOSE_STATS = auto()
    WRITE_PAGES = auto()
    WRITE_LAST = auto()
    CANCEL_WRITES = auto()
    SAY_DONE = auto()
    SAY_FAILED = auto()
    SAY_SETTLED = auto()


S, E, A = State, Event, Action
Row = tuple[State, tuple[Action, ...]]

_BREAK: tuple[Action, ...] = (A.CANCEL_WRITES, A.TELL_FAILED, A.SAY_FAILED)
_BROKEN: dict[Event, Row] = {
    E.ABORT: (S.DRAINING, _BREAK),
    E.WRITE_ERROR: (S.DRAINING, _BREAK),
    E.STALLED: (S.DRAINING, _BREAK),
    E.PEER_LOST: (S.DRAINING, _BREAK),
    E.UNSETTLED: (S.MUTE, _BREAK),
    E.FAIL: (S.DRAINING, (A.CANCEL_WRITES, A.SAY_FAILED)),
}
_UNWRITTEN: dict[Event, Row] = {
    E.ABORT: (S.FAILED, (A.TELL_FAILED, A.SAY_SETTLED)),
    E.FAIL: (S.FAILED, (A.SAY_FAILED, A.SAY_SETTLED)),
    E.DEADLINE: (S.FAILED, (A.TELL_FAILED, A.SAY_FAILED, A.SAY_SETTLED)),
    E.PEER_LOST: (S.FAILED, (A.TELL_FAILED,)),
}
_UNASKED: dict[Event, Row] = {
    E.ABORT: (S.FAILED, (A.SAY_SETTLED,)),
    E.FAIL: (S.FAILED, (A.SAY_FAILED, A.SAY_SETTLED)),
    E.DEADLINE: (S.FAILED, (A.SAY_FAILED, A.SAY_SETTLED)),
    E.PEER_LOST: (S.FAILED, ()),
}
_OVER = (A.SAY_FAILED, A.SAY_SETTLED)

TABLE: dict[State, dict[Event, Row]] = {
    S.NEW: {
        E.EXPECT: (S.EXPECTED, ()),
        E.ANNOUNCE: (S.HEARD, ()),
        E.RESERVE: (S.OFFERED, ()),
        E.ABORT: (S.FAILED, (A.SAY_SETTLED,)),
        E.FAIL: (S.FAILED, ()),
    },
    S.EXPECTED: {
        **_UNWRITTEN,
        E.ANNOUNCE: (S.WAITED, (A.STOP_CLOCK,)),
        E.RESERVE: (S.OPEN, (A.STOP_CLOCK, A.TELL_RESERVED, A.WRITE_PAGES)),
        E.LAST: (S.READY, ()),
    },
    S.HEARD: {
        **_UNASKED,
        E.EXPECT: (S.WAITED, (A.STOP_CLOCK,)),
        E.RESERVE: (S.OFFERED, ()),
    },
    S.OFFERED: {
        **_UNASKED,
        E.EXPECT: (S.OPEN, (A.STOP_CLOCK, A.TELL_RESERVED)),
    },
    S.WAITED: {
        **_UNWRITTEN,
        E.RESERVE: (S.OPEN, (A.TELL_RESERVED, A.WRITE_PAGES)),
        E.LAST: (S.READY, ()),
    },
    S.READY: {
        **_UNWRITTEN,
        E.ANNOUNCE: (S.READY, (A.STOP_CLOCK,)),
        E.RESERVE: (S.CLOSING, (A.STOP_CLOCK, A.TELL_RESERVED, A.WRITE_PAGES, A.WRITE_LAST)),
    },
    S.OPEN: {**_BROKEN, E.LAST: (S.CLOSING, (A.WRITE_LAST,))},
    S.CLOSING: {**_BROKEN, E.WRITTEN: (S.SENT, (A.CLOSE_STATS, A.SAY_DONE, A.TELL_SENT))},
    S.SENT: {
        E.RESERVE: (S.SENT, (A.SAY_DONE,)),
        E.WAITING: (S.SENT, (A.SAY_DONE,)),
        E.RECEIVED: (S.CLOSED, ()),
        E.DEADLINE: (S.CLOSED, ()),
        E.ABORT: (S.CLOSED, (A.SAY_SETTLED,)),
        E.PEER_LOST: (S.CLOSED, ()),
    },
    S.DRAINING: {
        E.WRITTEN: (S.FAILED, (A.SAY_SETTLED,)),
        E.UNSETTLED: (S.MUTE, ()),
        E.RESERVE: (S.DRAINING, (A.SAY_FAILED,)),
        E.WAITING: (S.DRAINING, (A.SAY_FAILED,)),
    },
    S.FAILED: {
        E.EXPECT: (S.FAILED, (A.TELL_FAILED,)),
        E.ANNOUNCE: (S.FAILED, _OVER),
        E.RESERVE: (S.FAILED, _OVER),
        E.WAITING: (S.FAILED, _OVER),
        E.ABORT: (S.FAILED, (A.SAY_SETTLED,)),
    },
    S.MUTE: {
        E.RESERVE: (S.MUTE, (A.SAY_FAILED,)),
        E.WAITING: (S.MUTE, (A.SAY_FAILED,)),
    },
    S.CLOSED: {
        E.ABORT: (S.CLOSED, (A.SAY_SETTLED,)),
        E.WAITING: (S.CLOSED, _OVER),
    },
}

BOUNDED = frozenset({S.EXPECTED, S.HEARD, S.OFFERED})
"""States that start the bootstrap clock."""
LIVE = frozenset({S.EXPECTED, S.HEARD, S.OFFERED, S.WAITED, S.READY, S.OPEN, S.CLOSING})
"""States in which a result may still come."""
OVER = frozenset({S.FAILED, S.MUTE, S.CLOSED})
"""Tombstones."""


def step(state: State, event: Event) -> Row:
    """The next state and what to do. An event that means nothing in this state changes nothing."""
    return TABLE[state].get(event, (state, ()))
