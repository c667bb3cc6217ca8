"""One NIXL agent of a worker process: its pools registered once, its peers, and writes between them.

Knows nothing of rooms or requests. One thread calls `connect`, `post`, `is_done` and `progress`; NIXL locks inside
(STRICT), so `metadata` may be asked from another. NIXL reports a failure by an exception more often than by a state, so
everything here raises `TransferError` for both.
"""

import logging
import uuid
from dataclasses import dataclass
from typing import Any, Literal

from stack.core.errors import TransferError
from stack.transfer.descriptors import Ids, num_runs, strided
from stack.transfer.spans import Pools, Spans

PoolName = Literal["pages", "slots"]
_NAMES: tuple[PoolName, ...] = ("pages", "slots")


@dataclass(slots=True)
class Peer:
    """A connected agent with one prepared list for each of its pools."""

    name: str
    lists: dict[PoolName, Any]


@dataclass(slots=True)
class Handle:
    """A posted write."""

    native: Any
    num_bytes: int
    num_descriptors: int


class TransferAgent:
    """Registers `pools` with NIXL under a fresh name; raises TransferError where NIXL or its backend cannot start."""

    def __init__(
        self, pools: Pools, *, backend: str = "ucx", progress_thread: bool = False, telemetry: bool = False
    ) -> None:
        self._nixl_error = _quiet_nixl()
        from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t

        self.name = uuid.uuid4().hex
        _select_device(pools.pages)
        settings = nixl_agent_config(
            enable_prog_thread=progress_thread,
            backends=[],
            sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT,
            capture_telemetry=telemetry,
        )
        try:
            self._agent = nixl_agent(self.name, settings)
            self._agent.create_backend(backend.upper(), {})
            self._registered = [self._register(getattr(pools, name)) for name in _NAMES]
            self._lists = {name: self._prepare("", getattr(pools, name)) for name in _NAMES}
        except Exception as error:
            raise TransferError(f"NIXL could not start its {backend} backend: {error}") from error
        self._pools = pools
        self._peers: dict[str, Peer] = {}

    def use_on_this_thread(self) -> None:
        """Make the pools' device the calling thread's own; CUDA keeps one for each thread."""
        _select_device(self._pools.pages)

    def metadata(self) -> bytes:
        """What a peer needs to reach this agent and its registered pools."""
        blob: bytes = self._agent.get_agent_metadata()
        return blob

    def connect(self, metadata: bytes, pools: Pools) -> Peer:
        """Load a peer, prepare lists over its pools and begin to connect, so that the first write is not slow.

        Raises TransferError.
        """
        try:
            name = _text(self._agent.add_remote_agent(metadata))
            peer = Peer(name, {})
            self._peers[name] = peer
            for pool in _NAMES:
                peer.lists[pool] = self._prepare(name, getattr(pools, pool))
            self._agent.make_connection(name)
            return peer
        except self._nixl_error as error:
            raise TransferError(f"the peer cannot be reached by NIXL: {error}") from error

    def disconnect(self, peer: Peer) -> None:
        """Forget a peer and its lists; further writes need `connect`. Never raises."""
        self._peers.pop(peer.name, None)
        for prepared in peer.lists.values():
            self._attempt(prepared.release)
        peer.lists.clear()
        self._attempt(lambda: self._agent.remove_remote_agent(peer.name))

    def post(self, peer: Peer, pool: PoolName, local_N: Ids, remote_N: Ids) -> tuple[Handle, bool]:
        """Start writing items to the peer's items; True when it is already done. May copy inside the call."""
        handle = None
        try:
            native = self._agent.make_prepped_xfer("WRITE", self._lists[pool], local_N, peer.lists[pool], remote_N)
            num_bytes = len(local_N) * getattr(self._pools, pool).item_bytes
            handle = Handle(native, num_bytes, num_runs(local_N, remote_N))
            state = self._agent.transfer(native)
        except self._nixl_error as error:
            if handle is not None:
                self.release(handle)
            raise TransferError(f"a write could not be started: {error}") from error
        return handle, self._is_done(state)

    def is_done(self, handle: Handle) -> bool:
        """Whether the write has ended. Raises TransferError when it failed; then it has ended too."""
        try:
            return self._is_done(self._agent.check_xfer_state(handle.native))
        except self._nixl_error as error:
            raise TransferError(f"a write broke off: {error}") from error

    def release(self, handle: Handle) -> None:
        """Give the handle back, cancelling what still runs. Never raises."""
        self._attempt(handle.native.release)

    def merged_descriptors(self, handle: Handle) -> int:
        """What NIXL itself counted for a finished write; needs `telemetry`."""
        return int(self._agent.get_xfer_telemetry(handle.native).descCount)

    def progress(self) -> None:
        """Let writes from peers move on; without the progress thread a target must call this while it expects any."""
        self._attempt(self._agent.get_new_notifs)

    @property
    def num_peers(self) -> int:
        """Connected peers."""
        return len(self._peers)

    def close(self) -> None:
        """Disconnect from all and give the memory back to the caller."""
        for peer in list(self._peers.values()):
            self.disconnect(peer)
        for prepared in self._lists.values():
            self._attempt(prepared.release)
        self._lists.clear()
        for registration in self._registered:
            self._attempt(lambda held=registration: self._agent.deregister_memory(held))
        self._registered.clear()

    def _register(self, spans: Spans) -> Any:
        return self._agent.register_memory([(spans.base, spans.total_bytes, spans.device_id, "")], spans.kind)

    def _prepare(self, name: str, spans: Spans) -> Any:
        rows = strided(spans.base, spans.item_bytes, spans.count, spans.device_id)
        return self._agent.prep_xfer_dlist(name, rows, spans.kind)

    def _is_done(self, state: str) -> bool:
        if state == "ERR":
            raise TransferError("a write ended with an error that NIXL does not name")
        return state == "DONE"

    def _attempt(self, action: Any) -> None:
        try:
            action()
        except self._nixl_error as error:
            logging.getLogger(__name__).debug("NIXL refused while cleaning up: %s", error)


def _select_device(spans: Spans) -> None:
    if spans.kind == "VRAM":
        import torch

        torch.cuda.set_device(spans.device_id)


def _quiet_nixl() -> tuple[type[Exception], ...]:
    """NIXL's exception types; its own logger announces every agent, which is noise in a server's log."""
    try:
        import nixl._bindings as bindings
    except ImportError as error:
        raise TransferError(f"NIXL is not installed ({error}); a disaggregated instance needs nixl==1.5.0") from error
    logging.getLogger("nixl").setLevel(logging.WARNING)
    found = (getattr(bindings, name) for name in dir(bindings) if name.endswith("Error"))
    return (*(kind for kind in found if isinstance(kind, type)), RuntimeError, ValueError)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
