"""The hand-off on a decode instance: what the engine's loop calls, over one control thread and one transfer thread.

Every method returns at once and may be called from one thread. What each room goes through is in `decode_core`; here
are the sockets to prefill instances, the threads, and the guard that a room is used for one request only.
"""

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from stack.cache import description_hash
from stack.config import EngineConfig
from stack.core.clock import Clock
from stack.core.errors import RequestError
from stack.core.messages import Bootstrap
from stack.disagg.bootstrap import Resolver
from stack.disagg.decode_core import DecodeCore, Place
from stack.disagg.decode_room import Memory
from stack.disagg.events import Arrived, DecodeEvent, Failed, Released
from stack.disagg.loop import SocketLoop
from stack.disagg.mailbox import Mailbox
from stack.disagg.messages import ToPrefill, decode_to_decode, encode
from stack.transfer import Outcome, Pools, TransferAgent, TransferWorker

MAX_REMEMBERED_ROOMS = 100_000
LINGER_MS = 200
FAREWELL_S = 1.0
_BROKEN = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED


class DecodeHandoff:
    """Takes requests over from prefill instances.

    A room with memory ends with `Arrived` (the memory is complete and the engine's) or with `Released` (it is the
    engine's, and worthless); `Failed` comes before `Released` and says why. After `cancel` only `Released` follows. A
    room without memory ends with `Failed`, or with `cancel`.
    """

    def __init__(self, config: EngineConfig, layout: dict[str, str], pools: Pools, clock: Clock) -> None:
        self.instance = uuid.uuid4().hex
        self.layout_hash = description_hash(layout)
        self._clock = clock
        self._events: Mailbox[DecodeEvent] = Mailbox()
        self._used: OrderedDict[int, str] = OrderedDict()
        """Rooms that came here: `announced`, `reserved` or `cancelled`."""
        disagg = config.disagg
        self._loop = SocketLoop("decode-control", self._tick, min(0.1, disagg.heartbeat_interval_s / 4))
        agent = TransferAgent(pools, backend=disagg.backend, progress_thread=disagg.progress_thread)
        metadata = agent.metadata()
        self._worker = TransferWorker(agent, clock, _no_outcomes)
        refused_s = min(3 * disagg.heartbeat_interval_s, disagg.bootstrap_timeout_s)
        self._wire = _Wire(self, Resolver(disagg.bootstrap_timeout_s, refused_s))
        self._core = DecodeCore(layout, pools, metadata, disagg, self._wire)
        self._loop.start()

    def announce(self, bootstrap: Bootstrap, rid: str, num_prompt_tokens: int) -> None:
        """A request arrived that must wait for memory; prefill then waits for it too. Optional before `reserve`.

        Raises RequestError (400) if its room was used before.
        """
        del rid  # a client may repeat it; only the room names an attempt
        self._use(bootstrap.room, "announced", ())
        place = (bootstrap.host, bootstrap.port)
        self._loop.call(lambda: self._core.announce(place, bootstrap.room, num_prompt_tokens, self._clock.now_s()))

    def reserve(
        self,
        bootstrap: Bootstrap,
        rid: str,
        prefix_len: int,
        pages: list[int],
        slot: int,
        num_prompt_tokens: int,
    ) -> None:
        """Have everything from `prefix_len` (a page multiple) on written to `pages`, in order, and the state to `slot`.

        Raises RequestError (400) if its room was used before.
        """
        del rid
        self._use(bootstrap.room, "reserved", ("announced",))
        place, memory = (bootstrap.host, bootstrap.port), Memory(prefix_len, list(pages), slot)
        self._loop.call(
            lambda: self._core.reserve(place, bootstrap.room, memory, num_prompt_tokens, self._clock.now_s())
        )

    def refuse(self, bootstrap: Bootstrap, reason: str) -> None:
        """Let prefill know that the request was refused here; it need not wait for it."""
        if bootstrap.room not in self._used:
            self.announce(bootstrap, "", 0)
            self.cancel(bootstrap.room, reason)

    def cancel(self, room: int, reason: str) -> None:
        """Give a room up. Its pages and slot are free at `Released`; without memory nothing follows."""
        if room in self._used:
            self._used[room] = "cancelled"
        self._loop.call(lambda: self._core.cancel(room, reason, self._clock.now_s()))

    def poll(self) -> list[DecodeEvent]:
        """What happened since the last call. Raises TransferError when a thread has broken down."""
        self._loop.check()
        return [wanted for event in self._events.take() if (wanted := self._wanted(event)) is not None]

    def fileno(self) -> int:
        """Readable when `poll` has something."""
        return self._events.fileno()

    @property
    def num_live(self) -> int:
        """Rooms that are not over, those whose memory is held included."""
        return self._core.num_live

    def counters(self) -> dict[str, float]:
        """Gauges for metrics: rooms that are not over, prefill instances."""
        return {"disagg_rooms": self._core.num_live, "disagg_peers": self._core.num_links}

    def close(self) -> None:
        """Say good-bye and stop. Memory of rooms that were not over may still be written to until the process ends.

        Prefill instances that have yet to hear of a room given up here get `FAREWELL_S` for it.
        """
        give_up_s = time.monotonic() + FAREWELL_S
        asked = threading.Event()
        self._loop.call(asked.set)  # behind what was asked before
        asked.wait(FAREWELL_S)
        while self._core.num_parting and time.monotonic() < give_up_s:
            time.sleep(0.01)
        self._loop.close(self._core.leave, self._wire.close)
        self._worker.close()
        self._events.close()

    def _use(self, room: int, stage: str, allowed: tuple[str, ...]) -> None:
        if self._used.get(room, "") not in ("", *allowed):
            raise RequestError(f"bootstrap_room {room} has been used: each attempt needs a room of its own")
        self._used[room] = stage
        if len(self._used) > MAX_REMEMBERED_ROOMS:
            self._used.popitem(last=False)

    def _wanted(self, event: DecodeEvent) -> DecodeEvent | None:
        if self._used.get(event.room) != "cancelled":
            return event
        if isinstance(event, Arrived):
            return Released(event.room)
        return None if isinstance(event, Failed) else event

    def _tick(self) -> None:
        self._core.tick(self._clock.now_s())


class _Wire:
    """Takes what the core asks for, on the control thread, and hands it what arrives."""

    def __init__(self, handoff: DecodeHandoff, resolver: Resolver) -> None:
        self._handoff = handoff
        self._resolver = resolver
        self._context = zmq.Context()
        self._sockets: dict[str, tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = {}
        self.tell = handoff._events.put
        self.expect_inbound = handoff._worker.expect_inbound

    def look_up(self, place: Place) -> None:
        """On a thread of the resolver."""
        self._resolver.look_up(
            *place,
            lambda endpoint: self._later(lambda core, now: core.found(place, endpoint, now)),
            lambda reason: self._later(lambda core, now: core.not_found(place, reason, now)),
        )

    def connect(self, instance: str, address: str) -> None:
        """Open a socket under this instance's name, and listen for its breaking."""
        sock = self._context.socket(zmq.DEALER)
        sock.setsockopt(zmq.IDENTITY, self._handoff.instance.encode())
        sock.setsockopt(zmq.LINGER, LINGER_MS)
        sock.setsockopt(zmq.IPV6, "[" in address)
        monitor = sock.get_monitor_socket(_BROKEN)
        sock.connect(address)
        self._sockets[instance] = (sock, monitor)
        self._handoff._loop.watch(sock, lambda: self._read(instance, sock))
        self._handoff._loop.watch(monitor, lambda: self._broken(instance, monitor))

    def send(self, instance: str, message: ToPrefill) -> None:
        """A full queue drops the message, as a broken connection would."""
        try:
            self._sockets[instance][0].send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return

    def disconnect(self, instance: str) -> None:
        """Close the socket."""
        sock, monitor = self._sockets.pop(instance)
        self._handoff._loop.unwatch(sock)
        self._handoff._loop.unwatch(monitor)
        sock.disable_monitor()
        monitor.close(0)
        sock.close()

    def probe(self, instance: str, address: str) -> None:
        """On a thread of the resolver."""
        reason = "the prefill instance has died"
        self._resolver.probe(address, lambda: self._later(lambda core, now: core.dead(instance, reason, now)))

    def close(self) -> None:
        """Close everything."""
        self._resolver.close()
        for instance in list(self._sockets):
            self.disconnect(instance)
        self._context.term()

    def _later(self, action: Callable[[DecodeCore, float], None]) -> None:
        handoff = self._handoff
        handoff._loop.call(lambda: action(handoff._core, handoff._clock.now_s()))

    def _read(self, instance: str, sock: "zmq.Socket[bytes]") -> None:
        while not sock.closed:
            try:
                message = decode_to_decode(sock.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            except msgspec.MsgspecError:
                continue  # not one of ours
            self._handoff._core.receive(instance, message, self._handoff._clock.now_s())

    def _broken(self, instance: str, monitor: "zmq.Socket[bytes]") -> None:
        while not monitor.closed and monitor.poll(0):
            recv_monitor_message(monitor)
            self._handoff._core.disconnected(instance)


def _no_outcomes(outcome: Outcome) -> None:
    raise AssertionError(f"a decode instance writes nothing, yet {outcome} came back")
