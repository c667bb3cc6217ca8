"""What a hand-off tells the engine, in order, from `poll`."""

from dataclasses import dataclass

from stack.disagg.messages import TransferStats


@dataclass(frozen=True, slots=True)
class Reserved:
    """Prefill: decode's memory is known; tokens before `prefix_len` are there already and need not be sent."""

    room: int
    prefix_len: int


@dataclass(frozen=True, slots=True)
class Sent:
    """Prefill: everything has been written and decode told. The room is over."""

    room: int
    stats: TransferStats


@dataclass(frozen=True, slots=True)
class Arrived:
    """Decode: pages, slot and record are complete and belong to the engine. The room is over."""

    room: int
    first_token: int
    cached_tokens: int
    extras: bytes
    stats: TransferStats


@dataclass(frozen=True, slots=True)
class Failed:
    """The room will not complete. On decode its memory is still held until `Released`. `status` is an HTTP status."""

    room: int
    reason: str
    status: int


@dataclass(frozen=True, slots=True)
class Released:
    """Decode: nothing will be written to the room's pages and slot any more. The room is over.

    `confirmed` is false when neither prefill's word nor its death was seen and the waiting time alone ran out.
    """

    room: int
    confirmed: bool = True


PrefillEvent = Reserved | Sent | Failed
DecodeEvent = Arrived | Failed | Released
