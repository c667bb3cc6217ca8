"""The hand-off on a prefill instance: what the engine's loop calls, over one control thread and one transfer thread.

Every method returns at once and may be called from one thread. What each room goes through is in `prefill_core`; here
are the ROUTER socket, the threads, and the guard that a room is used for one request only.
"""

import uuid
from collections import OrderedDict

import msgspec
import zmq

from stack.cache import description_hash
from stack.config import EngineConfig
from stack.core.clock import Clock
from stack.core.errors import RequestError
from stack.disagg.events import PrefillEvent
from stack.disagg.loop import SocketLoop
from stack.disagg.mailbox import Mailbox
from stack.disagg.messages import ToDecode, decode_to_prefill, encode
from stack.disagg.prefill_core import PrefillCore
from stack.disagg.prefill_room import Record
from stack.transfer import Outcome, Pools, TransferAgent, TransferWorker

MAX_REMEMBERED_ROOMS = 100_000
LINGER_MS = 1000


class PrefillHandoff:
    """Serves decode instances. `address` and `layout_hash` go to `GET /disagg/endpoint` with `instance`.

    A room ends with `Sent`, or with `Failed`, or with the engine's own `fail` or `cancel`, after which `poll` never
    mentions it. Its pages and slot must stay unchanged until then; after a failure they may be reused at once, because
    what is read from them afterwards is never used.
    """

    def __init__(self, config: EngineConfig, layout: dict[str, str], pools: Pools, clock: Clock) -> None:
        self.instance = uuid.uuid4().hex
        self.layout_hash = description_hash(layout)
        self._clock = clock
        self._events: Mailbox[PrefillEvent] = Mailbox()
        self._used: OrderedDict[int, bool] = OrderedDict()
        """Rooms that came here; True while events about them are wanted."""
        disagg = config.disagg
        self._loop = SocketLoop("prefill-control", self._tick, min(0.1, disagg.heartbeat_interval_s / 4))
        agent = TransferAgent(pools, backend=disagg.backend, progress_thread=disagg.progress_thread)
        self._worker = TransferWorker(agent, clock, self._ended, delay_s=disagg.delay_s)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a peer that reconnects replaces its broken connection
        host = f"[{config.server.host}]" if ":" in config.server.host else config.server.host
        self._socket.setsockopt(zmq.IPV6, ":" in host)
        self.address = f"tcp://{host}:{self._socket.bind_to_random_port(f'tcp://{host}')}"
        outside = _Outside(self._socket, self._events, self._worker)
        self._core = PrefillCore(self.instance, layout, pools, disagg, config.cache.page_size, outside)
        self._loop.watch(self._socket, self._read)
        self._loop.start()

    def expect(self, room: int, rid: str, num_prompt_tokens: int) -> None:
        """A request arrived over HTTP. Raises RequestError (400) if its room was used before."""
        del rid  # a client may repeat it; only the room names an attempt
        if room in self._used:
            raise RequestError(f"bootstrap_room {room} has been used: each attempt needs a room of its own")
        self._remember(room, is_wanted=True)
        self._loop.call(lambda: self._core.expect(room, num_prompt_tokens, self._clock.now_s()))

    def send_pages(self, room: int, first_page_index: int, pages: list[int]) -> None:
        """Prompt pages from `first_page_index` on are final, as physical ids; the last, partial one comes like any
        other.

        May be called before `Reserved`; pages that decode has are left out.
        """
        ids = list(pages)
        self._loop.call(lambda: self._core.send_pages(room, first_page_index, ids, self._clock.now_s()))

    def send_last(
        self, room: int, slot: int, first_token: int, num_tokens: int, cached_tokens: int, extras: bytes = b""
    ) -> None:
        """All pages of `num_tokens` have been given and the slot is final; the record follows the last write."""
        del num_tokens  # equal to what `expect` said; part of the call so that a log line can be complete
        record = Record(slot, first_token, cached_tokens, extras)
        self._loop.call(lambda: self._core.send_last(room, record, self._clock.now_s()))

    def fail(self, room: int, reason: str, status: int = 500) -> None:
        """The engine cannot serve the room; decode is told. Nothing about the room follows.

        Also for a request that was refused before `expect`, so that decode need not wait for it.
        """
        self._remember(room, is_wanted=False)
        self._loop.call(lambda: self._core.fail(room, reason, status, self._clock.now_s()))

    def cancel(self, room: int, reason: str) -> None:
        """The client has gone. Nothing about the room follows."""
        self.fail(room, reason, 499)

    def poll(self) -> list[PrefillEvent]:
        """What happened since the last call. Raises TransferError when a thread has broken down."""
        self._loop.check()
        return [event for event in self._events.take() if self._used.get(event.room, False)]

    def fileno(self) -> int:
        """Readable when `poll` has something."""
        return self._events.fileno()

    @property
    def num_live(self) -> int:
        """Rooms that may still complete or whose writes run."""
        return self._core.num_live

    def counters(self) -> dict[str, float]:
        """Gauges for metrics: rooms alive, records that decode has not confirmed, decode instances."""
        core = self._core
        return {
            "disagg_rooms": core.num_live,
            "disagg_unacknowledged": core.num_unacknowledged,
            "disagg_peers": core.num_peers,
        }

    def close(self) -> None:
        """Wait for writes under way, say good-bye and stop. The pools may be freed afterwards."""
        self._worker.close()
        self._loop.close(self._core.leave)
        self._socket.close()
        self._context.term()
        self._events.close()

    def _remember(self, room: int, *, is_wanted: bool) -> None:
        self._used[room] = is_wanted
        if len(self._used) > MAX_REMEMBERED_ROOMS:
            self._used.popitem(last=False)

    def _ended(self, outcome: Outcome) -> None:
        self._loop.call(lambda: self._core.outcome(outcome, self._clock.now_s()))

    def _tick(self) -> None:
        self._core.tick(self._clock.now_s())

    def _read(self) -> None:
        while True:
            try:
                peer, body = self._socket.recv_multipart(zmq.NOBLOCK)
                message = decode_to_prefill(body)
            except zmq.Again:
                return
            except (ValueError, msgspec.MsgspecError):
                continue  # not one of ours: whoever sent it gets no answer
            self._core.receive(peer.decode("ascii", "replace"), message, self._clock.now_s())


class _Outside:
    """Takes what the core asks for, on the control thread."""

    def __init__(self, sock: "zmq.Socket[bytes]", events: Mailbox[PrefillEvent], worker: TransferWorker) -> None:
        self._socket = sock
        self._worker = worker
        self.tell = events.put
        self.submit = worker.submit
        self.cancel = worker.cancel
        self.add_peer = worker.add_peer
        self.forget_peer = worker.forget_peer
        self.extend_lease = worker.extend_lease

    def send(self, peer: str, message: ToDecode) -> None:
        """ZeroMQ drops what is for an instance that is not connected."""
        self._socket.send_multipart([peer.encode(), encode(message)], zmq.NOBLOCK)
