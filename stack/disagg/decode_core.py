"""Decode's side of every room, without sockets, threads or a clock of its own: what comes in, what must go out.

The caller brings each input with the time; `effects` takes what follows from it. One thread at a time. There is one
link for each prefill instance, whatever names it is reached by; a link whose instance is silent is lost, one whose
process is known to be gone is dead. A room is one attempt: it never moves to another link.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from stack.config import DisaggConfig
from stack.disagg.decode_room import DecodeRoom, Memory
from stack.disagg.decode_states import WITHOUT_PEER, Event, State
from stack.disagg.events import DecodeEvent
from stack.disagg.messages import (
    Beat,
    Done,
    Endpoint,
    Gone,
    Hello,
    Leave,
    Pulse,
    Refused,
    RoomFailed,
    Settled,
    Stranger,
    ToDecode,
    ToPrefill,
    Unknown,
    Welcome,
)
from stack.transfer import Pools

MISSED_BEATS = 3
Place = tuple[str, int]
"""Host and port at which a prefill instance serves HTTP."""


class DecodeEffects(Protocol):
    """Where the core's consequences go; each call returns at once."""

    def look_up(self, place: Place) -> None:
        """Find who serves there; answered by `found` or `not_found`."""
        ...

    def connect(self, instance: str, address: str) -> None:
        """Open the control channel to an instance."""
        ...

    def send(self, instance: str, message: ToPrefill) -> None:
        """Say something to a connected instance."""
        ...

    def disconnect(self, instance: str) -> None:
        """Close the channel."""
        ...

    def probe(self, instance: str, address: str) -> None:
        """Find out whether anybody listens there still; `dead` is called when nobody does."""
        ...

    def tell(self, event: DecodeEvent) -> None:
        """Tell the engine."""
        ...

    def expect_inbound(self, count: int) -> None:
        """So many rooms may be written to right now."""
        ...


class _Life(Enum):
    GREETING = auto()
    KNOWN = auto()
    LOST = auto()
    DEAD = auto()


@dataclass(slots=True)
class _Link:
    instance: str
    address: str
    effects: DecodeEffects
    heard_s: float
    seqs: Iterator[int]
    """Shared by all links: prefill may remember the numbers of an earlier link to it."""
    life: _Life = _Life.GREETING
    stamp: float = 0.0
    beat_s: float = 0.0
    rooms: dict[int, DecodeRoom] = field(default_factory=dict)

    def next_seq(self) -> int:
        return next(self.seqs)

    def say(self, message: ToPrefill) -> None:
        if self.life is not _Life.DEAD:
            self.effects.send(self.instance, message)


class DecodeCore:
    """Every room and link of one decode instance."""

    def __init__(
        self, layout: dict[str, str], pools: Pools, metadata: bytes, config: DisaggConfig, effects: DecodeEffects
    ) -> None:
        self._layout = layout
        self._pools = pools
        self._metadata = metadata
        self._config = config
        self._effects = effects
        self._rooms: dict[int, DecodeRoom] = {}
        self._links: dict[str, _Link] = {}
        self._places: dict[Place, _Link | None] = {}
        """None while a lookup runs."""
        self._seeking: dict[Place, dict[int, DecodeRoom]] = {}
        self._ended: dict[int, tuple[float, DecodeRoom]] = {}
        """Rooms that ended before they had memory; the engine may be about to reserve for them."""
        self._inbound = 0
        self._seqs = itertools.count()

    def announce(self, place: Place, room: int, num_prompt_tokens: int, now: float) -> None:
        """A request has arrived for which there is no memory yet."""
        self._start(place, self._new_room(room, num_prompt_tokens), Event.ANNOUNCE, now)

    def reserve(self, place: Place, room: int, memory: Memory, num_prompt_tokens: int, now: float) -> None:
        """A request, announced or not, has memory. A room that ended meanwhile gives it back at once."""
        known = self._rooms.get(room) or self._ended.pop(room, (0.0, None))[1]
        state = known or self._new_room(room, num_prompt_tokens)
        state.memory = memory
        if known is None:
            self._start(place, state, Event.RESERVE, now)
        else:
            self._apply(state, Event.RESERVE, now)

    def cancel(self, room: int, reason: str, now: float) -> None:
        """The engine gives the room up; `Released` follows if it had memory."""
        if state := self._rooms.get(room):
            state.reason = reason
            self._apply(state, Event.CANCEL, now)

    def found(self, place: Place, endpoint: Endpoint, now: float) -> None:
        """A lookup ended well."""
        rooms = self._seeking.pop(place, {})
        link = self._links.get(endpoint.instance)
        if link is not None and link.life is _Life.DEAD:
            self._refuse(place, rooms, "the prefill worker behind this address has ended", now)
            return
        is_new = link is None
        if link is None:
            link = _Link(endpoint.instance, endpoint.address, self._effects, now, self._seqs)
            self._links[endpoint.instance] = link
            self._effects.connect(link.instance, link.address)
        self._places[place] = link
        for state in rooms.values():
            self._attach(link, state, now)
        if is_new or link.life is _Life.LOST:
            self._greet_anew(link, now)

    def not_found(self, place: Place, reason: str, now: float) -> None:
        """A lookup gave up."""
        self._refuse(place, self._seeking.pop(place, {}), reason, now)

    def dead(self, instance: str, reason: str, now: float) -> None:
        """Nobody listens at the instance's address any more."""
        link = self._links.get(instance)
        if link is None or link.life is _Life.DEAD:
            return
        link.life = _Life.DEAD
        self._forget_places(link)
        for state in list(link.rooms.values()):
            self._fail(state, Event.PEER_DEAD, reason, 503, now)
        self._tidy(link)

    def disconnected(self, instance: str) -> None:
        """The channel broke or could not be opened; ZeroMQ keeps trying."""
        link = self._links.get(instance)
        if link is not None and link.life is not _Life.DEAD:
            self._effects.probe(instance, link.address)

    def receive(self, instance: str, message: ToDecode, now: float) -> None:
        """A prefill instance said something."""
        link = self._links.get(instance)
        if link is None or link.life is _Life.DEAD:
            return
        if message.sender != link.instance:
            self.dead(instance, "the prefill instance was restarted", now)
            return
        link.heard_s = now
        match message:
            case Welcome():
                self._welcomed(link, message, now)
            case Pulse():
                link.stamp = max(link.stamp, message.stamp)
                self._revive(link, now)
                for room in message.alive:
                    if state := link.rooms.get(room):
                        state.still_alive(now)
            case Stranger() if link.life is _Life.KNOWN:
                self._greet_anew(link, now)
            case Refused():
                self._turned_away(link, message, now)
            case Gone():
                self.dead(instance, "the prefill instance has shut down", now)
            case Done() | RoomFailed() | Settled() | Unknown():
                self._about_room(link, message, now)

    def tick(self, now: float) -> None:
        """Let time pass: beats, silent links, deadlines. Messages that have arrived must be handed in first."""
        interval = self._config.heartbeat_interval_s
        for link in list(self._links.values()):
            is_silent = now - link.heard_s > MISSED_BEATS * interval
            if is_silent and link.life in (_Life.GREETING, _Life.KNOWN):
                self._lose(link, now)
            if now - link.beat_s >= interval and link.life is not _Life.DEAD:
                self._beat(link, now)
        for state in list(self._rooms.values()):
            if state.deadline_s is not None and now >= state.deadline_s:
                state.deadline_s = None
                self._fail(state, Event.DEADLINE, self._too_late(state), 504, now)
        for link in list(self._links.values()):
            self._tidy(link)
        keep_s = 2 * self._config.transfer_timeout_s
        while self._ended and now - next(iter(self._ended.values()))[0] > keep_s:
            del self._ended[next(iter(self._ended))]

    def leave(self) -> None:
        """Say good-bye to everybody."""
        for link in self._links.values():
            link.say(Leave(to=link.instance))

    @property
    def num_live(self) -> int:
        """Rooms that are not over."""
        return len(self._rooms) - self.num_parting

    @property
    def num_parting(self) -> int:
        """Rooms that are over here, while a prefill instance has yet to hear of it."""
        return sum(state.state is State.PARTING for state in list(self._rooms.values()))

    @property
    def num_links(self) -> int:
        """Prefill instances with an open channel."""
        return len(self._links)

    def _start(self, place: Place, state: DecodeRoom, event: Event, now: float) -> None:
        self._rooms[state.room] = state
        self._apply(state, event, now)
        link = self._places.get(place)
        if link is not None:
            self._attach(link, state, now)
            return
        self._seeking.setdefault(place, {})[state.room] = state
        if place not in self._places:
            self._places[place] = None
            self._effects.look_up(place)

    def _new_room(self, room: int, num_prompt_tokens: int) -> DecodeRoom:
        return DecodeRoom(room, num_prompt_tokens, self._config, self._effects.tell)

    def _attach(self, link: _Link, state: DecodeRoom, now: float) -> None:
        if state.state is State.CLOSED:
            return
        state.link = link
        link.rooms[state.room] = state
        if link.life is _Life.KNOWN:
            self._apply(state, Event.JOINED, now)

    def _greet_anew(self, link: _Link, now: float) -> None:
        link.life = _Life.GREETING
        link.heard_s = now
        self._greet(link, now)

    def _greet(self, link: _Link, now: float) -> None:
        """Name the rooms that wait for the answer, so that a prefill that refuses can end its halves of them."""
        link.beat_s = now
        link.say(
            Hello(
                to=link.instance,
                layout=self._layout,
                metadata=self._metadata,
                pools=self._pools,
                rooms=_in_state(link.rooms.values(), *WITHOUT_PEER),
            )
        )

    def _welcomed(self, link: _Link, message: Welcome, now: float) -> None:
        link.stamp = max(link.stamp, message.stamp)
        link.life = _Life.KNOWN
        waiting = [state for state in link.rooms.values() if state.state in WITHOUT_PEER]
        for state in waiting:  # before the beat, which lists those given up without their reasons
            if state.state is State.PARTING:
                self._apply(state, Event.JOINED, now)
        self._beat(link, now)
        for state in waiting:
            if state.state is not State.PARTING:
                self._apply(state, Event.JOINED, now)

    def _revive(self, link: _Link, now: float) -> None:
        """A lost instance speaks again: what it was asked before is over, but new rooms may use it."""
        if link.life is _Life.LOST:
            self._greet_anew(link, now)

    def _turned_away(self, link: _Link, refused: Refused, now: float) -> None:
        """End the rooms that prefill has ended too. Those that came after the greeting are named in another one.

        A greeting follows at once only where the answer ended a room, and else with the next beat: the talk ends.
        """
        self._forget_places(link)
        ended = [link.rooms[room] for room in refused.rooms if room in link.rooms]
        for state in ended:
            self._fail(state, Event.REFUSED, refused.reason, 500, now)
        if link.life is _Life.GREETING and _in_state(link.rooms.values(), *WITHOUT_PEER):
            if ended:
                self._greet(link, now)
            return
        link.life = _Life.LOST
        self._tidy(link)

    def _lose(self, link: _Link, now: float) -> None:
        link.life = _Life.LOST
        self._forget_places(link)
        self._effects.probe(link.instance, link.address)
        for state in list(link.rooms.values()):
            self._fail(state, Event.PEER_LOST, "the prefill instance gives no sign of life", 503, now)

    def _beat(self, link: _Link, now: float) -> None:
        if link.life is _Life.GREETING:
            self._greet(link, now)
            return
        link.beat_s = now
        if link.life is _Life.LOST:
            self._effects.probe(link.instance, link.address)
        link.say(
            Beat(
                to=link.instance,
                seq=link.next_seq(),
                echo=link.stamp,
                announced=_in_state(link.rooms.values(), State.ANNOUNCED),
                reserved=_in_state(link.rooms.values(), State.ASKED),
                closing=_in_state(link.rooms.values(), State.HOLDING, State.PARTING),
            )
        )

    def _about_room(self, link: _Link, message: Done | RoomFailed | Settled | Unknown, now: float) -> None:
        state = link.rooms.get(message.room)
        if state is None:
            return
        match message:
            case Done():
                state.done = message
                self._apply(state, Event.DONE, now)
            case RoomFailed():
                self._fail(state, Event.FAILED, message.reason, message.status, now)
            case Settled() if state.state is State.HOLDING:
                self._apply(state, Event.SETTLED, now)
            case Settled():
                self._fail(state, Event.SETTLED, "the prefill instance has ended the request", 500, now)
            case Unknown():
                self._apply(state, Event.UNKNOWN, now)

    def _refuse(self, place: Place, rooms: dict[int, DecodeRoom], reason: str, now: float) -> None:
        self._places.pop(place, None)
        for state in rooms.values():
            self._fail(state, Event.REFUSED, reason, 503, now)

    def _forget_places(self, link: _Link) -> None:
        self._places = {place: other for place, other in self._places.items() if other is not link}

    def _tidy(self, link: _Link) -> None:
        """Close a channel that nobody needs: a lost or dead instance without rooms."""
        over = link.life in (_Life.LOST, _Life.DEAD)
        if over and not link.rooms and self._links.get(link.instance) is link:
            del self._links[link.instance]
            self._effects.disconnect(link.instance)

    def _fail(self, state: DecodeRoom, event: Event, reason: str, status: int, now: float) -> None:
        if state.state is not State.HOLDING:
            state.failure = (reason, status)
        self._apply(state, event, now)

    def _apply(self, state: DecodeRoom, event: Event, now: float) -> None:
        state.apply(event, now)
        if state.state is State.CLOSED:
            if self._rooms.pop(state.room, None) and state.memory is None:
                self._ended[state.room] = (now, state)
            if isinstance(state.link, _Link):
                state.link.rooms.pop(state.room, None)
        inbound = sum(len(link.rooms) for link in self._links.values())
        if inbound != self._inbound:
            self._inbound = inbound
            self._effects.expect_inbound(inbound)

    def _too_late(self, state: DecodeRoom) -> str:
        if state.state in WITHOUT_PEER:
            return f"the prefill instance was not reached within {self._config.bootstrap_timeout_s:g} s"
        return f"the prefill instance said nothing about the request for {self._config.transfer_timeout_s:g} s"


def _in_state(rooms: Iterable[DecodeRoom], *wanted: State) -> list[int]:
    return [state.room for state in rooms if state.state in wanted]
