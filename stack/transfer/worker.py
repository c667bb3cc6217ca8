"""The thread that posts writes and waits for them, so that nobody else does.

NIXL may copy inside the call that starts a write, so no scheduler and no event loop may make it. This thread sleeps
between looks and never spins. It knows nothing of rooms beyond a number to cancel by.

Invariants: every submitted write gets exactly one `Outcome`; an outcome with `settled` says that NIXL will not touch
the peer's memory for this write any more; after one failure of a peer nothing is reported until its other posted writes
have ended too (or `settle_s` has passed, then `settled` is false). A write is posted only while the peer's lease holds.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stack.core.clock import Clock
from stack.core.errors import TransferError
from stack.transfer.descriptors import paired
from stack.transfer.spans import Pools

if TYPE_CHECKING:
    from stack.transfer.agent import Handle, Peer, PoolName, TransferAgent

RUNNING_SLEEP_S = 0.0003
INBOUND_SLEEP_S = 0.001
IDLE_SLEEP_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Items of one of our pools to items of a peer's pool of the same name. `room` is what `cancel` names."""

    ticket: int
    room: int
    peer: str
    pool: "PoolName"
    local_ids: list[int]
    remote_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a write ended. `error` is empty on success. Times are seconds."""

    ticket: int
    error: str = ""
    settled: bool = True
    num_bytes: int = 0
    num_descriptors: int = 0
    queue_s: float = 0.0
    """From submission to the start of the post, the test delay included."""
    post_s: float = 0.0
    """Inside the call that starts the write."""
    complete_s: float = 0.0
    """From the start of the post to the end of the write."""


@dataclass(slots=True)
class _Waiting:
    write: Write
    submitted_s: float
    ready_s: float


@dataclass(slots=True)
class _Running:
    write: Write
    handle: "Handle"
    submitted_s: float
    posted_s: float
    post_s: float


@dataclass(slots=True)
class _PeerState:
    metadata: bytes
    pools: Pools
    lease_until_s: float
    connected: "Peer | None" = None
    error: str = ""
    """Not empty while a failure waits for the peer's other writes to end."""
    settle_by_s: float = 0.0
    failed: list[Outcome] = field(default_factory=list)


class TransferWorker:
    """Runs `agent` on a thread of its own. `on_outcome` is called on that thread and must not block."""

    def __init__(
        self,
        agent: "TransferAgent",
        clock: Clock,
        on_outcome: Callable[[Outcome], None],
        *,
        delay_s: float = 0.0,
        settle_s: float = 5.0,
    ) -> None:
        self._agent = agent
        self._clock = clock
        self._on_outcome = on_outcome
        self._delay_s = delay_s
        self._settle_s = settle_s
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: list[_Waiting] = []
        self._running: list[_Running] = []
        self._peers: dict[str, _PeerState] = {}
        self._inbound = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="transfer", daemon=True)
        self._thread.start()

    def add_peer(self, peer: str, metadata: bytes, pools: Pools) -> None:
        """Learn where a peer's memory is and connect; a failure to connect shows at the first write."""
        self._commands.put(lambda: self._add_peer(peer, metadata, pools))

    def forget_peer(self, peer: str) -> None:
        """Writes to this peer that were not posted end with an error; it is disconnected once its posted ones ended."""
        self._commands.put(lambda: self._fail_peer(peer, "the peer has gone", forget=True))

    def extend_lease(self, peer: str, until_s: float) -> None:
        """Allow posts to this peer up to a time of the clock; a lease never shrinks."""
        self._commands.put(lambda: self._extend_lease(peer, until_s))

    def submit(self, write: Write) -> None:
        """Queue a write. Writes to one peer are posted in the order of submission."""
        now = self._clock.now_s()
        self._commands.put(lambda: self._waiting.append(_Waiting(write, now, now + self._delay_s)))

    def cancel(self, room: int) -> None:
        """End the room's writes that were not posted; posted ones run to their end."""
        self._commands.put(lambda: self._cancel(room))

    def expect_inbound(self, count: int) -> None:
        """How many rooms peers may be writing to: above 0 the thread looks often enough for them to make progress."""
        self._commands.put(lambda: setattr(self, "_inbound", count))

    def close(self) -> None:
        """End all writes, wait for the posted ones up to the settling time, and stop the thread."""
        self._commands.put(None)
        self._thread.join(self._settle_s + 5.0)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        self._agent.use_on_this_thread()
        while not (self._closing and not self._running and not any(p.error for p in self._peers.values())):
            self._obey()
            self._post_ready()
            self._look_at_running()
            self._settle_failed()
            self._agent.progress()
        self._agent.close()

    def _obey(self) -> None:
        """Take every command; sleep on the queue when there is none."""
        timeout = self._pause_s()
        while True:
            try:
                command = self._commands.get(timeout=timeout)
            except queue.Empty:
                return
            if command is None:
                self._closing = True
                self._drop_waiting(lambda _: True, "the instance is closing")
            else:
                command()
            timeout = 0.0
            if self._commands.empty():
                return

    def _pause_s(self) -> float:
        if self._running or any(peer.error for peer in self._peers.values()):
            return RUNNING_SLEEP_S
        if self._waiting:
            next_s = min(waiting.ready_s for waiting in self._waiting) - self._clock.now_s()
            return min(max(next_s, INBOUND_SLEEP_S), IDLE_SLEEP_S)
        return INBOUND_SLEEP_S if self._inbound else IDLE_SLEEP_S

    def _add_peer(self, name: str, metadata: bytes, pools: Pools) -> None:
        known = self._peers.get(name)
        if known is None:
            self._peers[name] = known = _PeerState(metadata, pools, self._clock.now_s())
        known.metadata = metadata
        if known.connected is None and not known.error:
            try:
                known.connected = self._agent.connect(metadata, pools)
            except TransferError:
                known.connected = None

    def _extend_lease(self, name: str, until_s: float) -> None:
        if peer := self._peers.get(name):
            peer.lease_until_s = max(peer.lease_until_s, until_s)

    def _cancel(self, room: int) -> None:
        self._drop_waiting(lambda write: write.room == room, "cancelled")

    def _drop_waiting(self, chosen: Callable[[Write], bool], error: str) -> None:
        dropped = [waiting for waiting in self._waiting if chosen(waiting.write)]
        self._waiting = [waiting for waiting in self._waiting if not chosen(waiting.write)]
        for waiting in dropped:
            self._on_outcome(Outcome(ticket=waiting.write.ticket, error=error))

    def _post_ready(self) -> None:
        later: list[_Waiting] = []
        ready, self._waiting = self._waiting, later
        for waiting in ready:
            peer = self._peers.get(waiting.write.peer)
            if peer is None:
                self._on_outcome(Outcome(ticket=waiting.write.ticket, error="the peer has gone"))
            elif peer.error:
                peer.failed.append(Outcome(ticket=waiting.write.ticket, error=peer.error))
            elif self._clock.now_s() < waiting.ready_s or self._clock.now_s() > peer.lease_until_s:
                later.append(waiting)
            else:
                self._post(waiting, peer)

    def _post(self, waiting: _Waiting, peer: _PeerState) -> None:
        write = waiting.write
        start = self._clock.now_s()
        try:
            if peer.connected is None:
                peer.connected = self._agent.connect(peer.metadata, peer.pools)
            local_N, remote_N = paired(write.local_ids, write.remote_ids)
            handle, done = self._agent.post(peer.connected, write.pool, local_N, remote_N)
        except TransferError as error:
            peer.failed.append(Outcome(ticket=write.ticket, error=str(error)))
            self._fail_peer(write.peer, str(error))
            return
        running = _Running(write, handle, waiting.submitted_s, start, self._clock.now_s() - start)
        if done:
            self._finish(running)
        else:
            self._running.append(running)

    def _look_at_running(self) -> None:
        for running in list(self._running):
            try:
                done = self._agent.is_done(running.handle)
            except TransferError as error:
                self._agent.release(running.handle)
                self._running.remove(running)
                self._peers[running.write.peer].failed.append(Outcome(ticket=running.write.ticket, error=str(error)))
                self._fail_peer(running.write.peer, str(error))
                continue
            if done:
                self._running.remove(running)
                self._finish(running)

    def _finish(self, running: _Running) -> None:
        self._agent.release(running.handle)
        self._on_outcome(
            Outcome(
                ticket=running.write.ticket,
                num_bytes=running.handle.num_bytes,
                num_descriptors=running.handle.num_descriptors,
                queue_s=running.posted_s - running.submitted_s,
                post_s=running.post_s,
                complete_s=self._clock.now_s() - running.posted_s,
            )
        )

    def _fail_peer(self, name: str, error: str, *, forget: bool = False) -> None:
        """Post nothing more to the peer; `_settle_failed` reports once its posted writes have ended."""
        peer = self._peers.get(name)
        if peer is None:
            return
        if forget:
            peer.metadata = b""
        if not peer.error:
            peer.error = error
            peer.settle_by_s = self._clock.now_s() + self._settle_s

    def _settle_failed(self) -> None:
        for name, peer in list(self._peers.items()):
            if not peer.error:
                continue
            still = [running for running in self._running if running.write.peer == name]
            if still and self._clock.now_s() < peer.settle_by_s:
                continue
            for running in still:
                self._running.remove(running)
                self._agent.release(running.handle)
                peer.failed.append(Outcome(ticket=running.write.ticket, error=peer.error, settled=False))
            self._let_go(name, peer)

    def _let_go(self, name: str, peer: _PeerState) -> None:
        if peer.connected is not None:
            self._agent.disconnect(peer.connected)
            peer.connected = None
        self._drop_waiting(lambda write: write.peer == name, peer.error)
        for outcome in peer.failed:
            self._on_outcome(outcome)
        peer.failed.clear()
        peer.error = ""
        if not peer.metadata:
            del self._peers[name]
