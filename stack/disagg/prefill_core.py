"""Prefill's side of every room, without sockets, threads or a clock of its own: what comes in, what must go out.

The caller brings each input with the time; `effects` takes what follows from it. One thread at a time. Here are the
peers, all rooms, and the lease: a peer's memory may be written only while a recent `Beat` has listed the room, so
that a write delayed for whatever reason cannot hit memory that decode has given to others.
"""

import itertools
from dataclasses import dataclass

import msgspec

from stack.cache import explain_mismatch
from stack.config import DisaggConfig
from stack.disagg.messages import (
    Abort,
    Announce,
    Beat,
    Gone,
    Hello,
    Leave,
    Pulse,
    Received,
    Refused,
    Reserve,
    RoomFailed,
    Settled,
    Stranger,
    ToPrefill,
    Unknown,
    Welcome,
)
from stack.disagg.prefill_room import Context, PrefillEffects, PrefillRoom, Record, unequal_prompts
from stack.disagg.prefill_states import Event, State
from stack.transfer import Outcome, Pools

MISSED_BEATS = 3
UNCLAIMED = (State.EXPECTED, State.READY)
"""States in which the request is here and may wait for a decode instance to ask for it."""


@dataclass(slots=True)
class _Peer:
    heard_s: float
    seq: int = -1


class PrefillCore:
    """Every room and peer of one prefill instance."""

    def __init__(
        self,
        instance: str,
        layout: dict[str, str],
        pools: Pools,
        config: DisaggConfig,
        page_size: int,
        effects: PrefillEffects,
    ) -> None:
        self.instance = instance
        self._layout = layout
        self._pools = pools
        self._config = config
        self._effects = effects
        self._context = Context(
            instance=instance, config=config, page_size=page_size, effects=effects, tickets=itertools.count()
        )
        self._rooms: dict[int, PrefillRoom] = {}
        self._tombs: dict[int, tuple[float, PrefillRoom]] = {}
        self._peers: dict[str, _Peer] = {}
        self._deserted: tuple[float, str] | None = None
        """Since when, and why, the last decode instance that was known is not any more; None where that is not so."""
        self._writes: dict[int, PrefillRoom] = {}
        self._keep_s = 2 * max(config.bootstrap_timeout_s, config.transfer_timeout_s)

    def expect(self, room: int, num_prompt_tokens: int, now: float) -> None:
        """The request of a room arrived over HTTP."""
        state = self._room(room, now)
        state.num_prompt_tokens = num_prompt_tokens
        if state.reserve is not None:
            state.stats = msgspec.structs.replace(state.stats, wait_s=state.born_s - now)
            if state.reserve.num_prompt_tokens != num_prompt_tokens:
                problem = unequal_prompts(num_prompt_tokens, state.reserve.num_prompt_tokens)
                state.fail(Event.DEADLINE, *problem, now)
        self._apply(state, Event.EXPECT, now)

    def send_pages(self, room: int, first_page_index: int, pages: list[int], now: float) -> None:
        """Pages of the prompt, from `first_page_index` on, are final."""
        state = self._rooms.get(room)
        if state is not None and state.is_live and pages:
            state.pending.append((first_page_index, pages))
            state.write_pages(now)
            self._keep(state, now)

    def send_last(self, room: int, record: Record, now: float) -> None:
        """Everything else is final too; the record follows when all has been written."""
        state = self._rooms.get(room)
        if state is not None and state.is_live:
            state.record = record
            state.last_s = now
            self._apply(state, Event.LAST, now)

    def fail(self, room: int, reason: str, status: int, now: float) -> None:
        """The engine gives the room up, or never takes it; no event about it follows."""
        state = self._room(room, now)
        state.fail(Event.FAIL, reason, status, now)
        self._keep(state, now)

    def outcome(self, outcome: Outcome, now: float) -> None:
        """A write ended."""
        if state := self._writes.pop(outcome.ticket, None):
            state.write_ended(outcome, now)
            self._keep(state, now)

    def receive(self, peer: str, message: ToPrefill, now: float) -> None:
        """A decode instance said something."""
        known = self._peers.get(peer)
        if message.to != self.instance or (known is None and not isinstance(message, Hello | Leave)):
            self._effects.send(peer, Stranger(sender=self.instance))
            return
        if known is not None:
            known.heard_s = now
        match message:
            case Hello():
                self._greet(peer, message, now)
            case Beat() if known is not None:
                self._beat(peer, known, message, now)
            case Announce() | Reserve():
                self._bind(peer, message, now)
            case Abort():
                self._abort(peer, message.room, message.reason, now)
            case Received():
                if (state := self._find(message.room)) and state.peer == peer:
                    self._apply(state, Event.RECEIVED, now)
            case Leave() if known is not None:
                self._lose(peer, "the decode instance has shut down", now)

    def tick(self, now: float) -> None:
        """Let time pass: deadlines, silent peers, tombstones. Messages that have arrived must be handed in first."""
        for name, peer in list(self._peers.items()):
            if now - peer.heard_s > MISSED_BEATS * self._config.heartbeat_interval_s:
                self._lose(name, "the decode instance gives no sign of life", now)
        limit = self._config.transfer_timeout_s
        for state in list(self._rooms.values()):
            if state.outstanding and now - state.moved_s > limit:
                state.fail(Event.STALLED, f"a transfer did not end within {limit:g} s", 504, now)
            if state.deadline_s is not None and now >= state.deadline_s:
                state.deadline_s = None
                state.fail(Event.DEADLINE, self._too_late(state), 504, now)
            elif self._deserted and self._waits_in_vain(state, self._deserted[0], now):
                state.fail(Event.DEADLINE, f"{self._deserted[1]}, and no other is connected", 503, now)
            self._keep(state, now)
        while self._tombs and now >= next(iter(self._tombs.values()))[0]:
            del self._tombs[next(iter(self._tombs))]

    def leave(self) -> None:
        """Tell every decode instance that this one ends; no write may be under way."""
        for peer in self._peers:
            self._effects.send(peer, Gone(sender=self.instance))

    @property
    def num_live(self) -> int:
        """Rooms that may still complete or whose writes run."""
        return sum(state.is_live or state.state is State.DRAINING for state in list(self._rooms.values()))

    @property
    def num_unacknowledged(self) -> int:
        """Complete rooms whose record decode has not confirmed."""
        return sum(state.state is State.SENT for state in list(self._rooms.values()))

    @property
    def num_peers(self) -> int:
        """Decode instances that are known and alive."""
        return len(self._peers)

    def _greet(self, peer: str, hello: Hello, now: float) -> None:
        sides = {"here": "on prefill", "there": "on decode"}
        reason = explain_mismatch(self._layout, hello.layout, **sides) or self._pools.mismatch(hello.pools, **sides)
        if reason:
            self._turn_away(peer, hello.rooms, f"{reason}; start prefill and decode with the same settings", now)
            return
        if peer not in self._peers:
            self._peers[peer] = _Peer(now)
            self._effects.add_peer(peer, hello.metadata, hello.pools)
        self._deserted = None
        self._effects.send(peer, Welcome(sender=self.instance, stamp=now))

    def _turn_away(self, peer: str, rooms: list[int], reason: str, now: float) -> None:
        """End the rooms for which the decode instance came, those included whose request is still under way to here."""
        for room in rooms:
            state = self._room(room, now)
            if not state.peer:
                state.fail(Event.ABORT, reason, 500, now)
                self._keep(state, now)
        self._effects.send(peer, Refused(sender=self.instance, reason=reason, rooms=rooms))

    def _beat(self, peer: str, known: _Peer, beat: Beat, now: float) -> None:
        if beat.seq > known.seq:
            known.seq = beat.seq
            for room in beat.closing:
                self._abort(peer, room, "the decode instance gave the request up", now)
            self._drop_unlisted(peer, beat, now)
            self._effects.extend_lease(peer, beat.echo + self._config.abort_ack_timeout_s / 2)
        alive = [room for room in (*beat.announced, *beat.reserved) if self._answers(peer, room, beat, now)]
        self._effects.send(peer, Pulse(sender=self.instance, stamp=now, alive=alive))

    def _drop_unlisted(self, peer: str, beat: Beat, now: float) -> None:
        """Decode no longer waits for a room that it claimed before this beat: its abort or receipt was lost."""
        listed = {*beat.announced, *beat.reserved, *beat.closing}
        for state in list(self._rooms.values()):
            if state.peer != peer or state.peer_seq >= beat.seq or state.room in listed:
                continue
            if state.state is State.SENT:
                self._apply(state, Event.RECEIVED, now)
            else:
                state.fail(Event.ABORT, "the decode instance gave the request up", 499, now)
                self._keep(state, now)

    def _answers(self, peer: str, room: int, beat: Beat, now: float) -> bool:
        """Whether prefill is at work on a listed room; where not, decode is told what became of it."""
        state = self._find(room)
        if state is not None and state.peer and state.peer != peer:
            self._reject(peer, room, "the room belongs to another decode instance", 400)
            return False
        unclaimed = state is None or (state.is_live and not state.peer)
        unreserved = state is not None and state.is_live and state.reserve is None and room in beat.reserved
        if unclaimed or unreserved:
            self._effects.send(peer, Unknown(sender=self.instance, room=room))
            return False
        assert state is not None
        self._claim(state, peer)
        self._apply(state, Event.WAITING, now)
        return state.is_live

    def _lose(self, peer: str, reason: str, now: float) -> None:
        del self._peers[peer]
        if not self._peers:
            self._deserted = (now, reason)
        self._effects.forget_peer(peer)
        for state in list(self._rooms.values()):
            if state.peer == peer:
                state.fail(Event.PEER_LOST, reason, 500, now)
                self._keep(state, now)

    def _bind(self, peer: str, message: Announce | Reserve, now: float) -> None:
        state = self._room(message.room, now)
        if state.peer and state.peer != peer:
            self._reject(peer, message.room, "the room belongs to another decode instance", 400)
            return
        if problem := state.problem(message):
            self._reject(peer, message.room, *problem)
            state.fail(Event.ABORT if state.state is State.NEW else Event.DEADLINE, *problem, now)
            self._keep(state, now)
            return
        self._claim(state, peer)
        state.peer_seq = max(state.peer_seq, message.seq)
        if isinstance(message, Reserve) and state.reserve is None and (state.is_live or state.state is State.NEW):
            state.reserve = message
            state.stats = msgspec.structs.replace(state.stats, wait_s=now - state.born_s)
        self._apply(state, Event.RESERVE if isinstance(message, Reserve) else Event.ANNOUNCE, now)

    def _abort(self, peer: str, room: int, reason: str, now: float) -> None:
        state = self._room(room, now)
        if state.peer and state.peer != peer:
            self._effects.send(peer, Settled(sender=self.instance, room=room))
            return
        self._claim(state, peer)
        state.fail(Event.ABORT, reason, 499, now)
        self._keep(state, now)

    def _reject(self, peer: str, room: int, reason: str, status: int) -> None:
        self._effects.send(peer, RoomFailed(sender=self.instance, room=room, reason=reason, status=status))
        self._effects.send(peer, Settled(sender=self.instance, room=room))

    def _claim(self, state: PrefillRoom, peer: str) -> None:
        state.peer = state.peer or peer

    def _apply(self, state: PrefillRoom, event: Event, now: float) -> None:
        state.apply(event, now)
        self._keep(state, now)

    def _keep(self, state: PrefillRoom, now: float) -> None:
        """File the room where its state belongs, and its writes where their outcomes will look for it."""
        for ticket in state.outstanding:
            self._writes.setdefault(ticket, state)
        if state.state is State.NEW:
            self._rooms.pop(state.room, None)
        elif state.is_over and state.room in self._rooms:
            del self._rooms[state.room]
            self._tombs[state.room] = (now + self._keep_s, state)

    def _find(self, room: int) -> PrefillRoom | None:
        tomb = self._tombs.get(room)
        return tomb[1] if tomb else self._rooms.get(room)

    def _room(self, room: int, now: float) -> PrefillRoom:
        found = self._find(room)
        if found is None:
            found = self._rooms[room] = PrefillRoom(room, now, self._context)
        return found

    def _waits_in_vain(self, state: PrefillRoom, deserted_s: float, now: float) -> bool:
        """Whether nobody can have asked for the request: no decode instance is here, and a new one had time to come."""
        patience_s = MISSED_BEATS * self._config.heartbeat_interval_s
        return state.state in UNCLAIMED and not state.peer and now - max(deserted_s, state.born_s) > patience_s

    def _too_late(self, state: PrefillRoom) -> str:
        waited = f"within {self._config.bootstrap_timeout_s:g} s"
        if state.state in (State.HEARD, State.OFFERED):
            return f"the request did not reach the prefill instance {waited}"
        return f"no decode instance asked for the request {waited}"
