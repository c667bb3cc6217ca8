"""What prefill and decode say to each other: msgpack of these structs over one ZeroMQ TCP connection a pair.

Every message may be lost, repeated or late; none relies on its predecessor. A message to prefill names the instance it
is meant for, one to decode the instance it comes from, so a process restarted on the same address is never mistaken for
the old one. Cache and state bytes travel beside this channel, by NIXL.

`Beat` and `Pulse` repair every loss: decode lists the rooms it announced, reserved and wants back, prefill answers with
what it knows of each. Decode's `seq` orders a `Beat` against the rooms announced or reserved before it.
"""

import msgspec

from stack.transfer import Pools


class TransferStats(msgspec.Struct, frozen=True, kw_only=True):
    """What moving one room took. Times are seconds on prefill's clock."""

    num_bytes: int = 0
    num_descriptors: int = 0
    num_writes: int = 0
    post_s: float = 0.0
    """Inside the calls that start writes, all together."""
    write_s: float = 0.0
    """Sum over writes from the start of the post to the end."""
    tail_s: float = 0.0
    """From the last chunk's hand-over to the end of the last write: what the request waits for."""
    last_at_s: float = 0.0
    """When the last chunk was handed over. On one host both instances have the same clock."""
    wait_s: float = 0.0
    """From the request's arrival on prefill to decode's reservation; negative when decode was first."""
    delay_s: float = 0.0
    """The test delay that each write was given."""


class Hello(msgspec.Struct, frozen=True, tag="hello", kw_only=True):
    """Decode introduces itself: what it is laid out like, where its memory is, and the rooms for which it comes."""

    to: str
    layout: dict[str, str]
    metadata: bytes
    pools: Pools
    rooms: list[int] = []


class Announce(msgspec.Struct, frozen=True, tag="announce", kw_only=True):
    """Decode has the request and waits for memory; prefill need not fear that it never comes.

    `num_prompt_tokens` is 0 where decode refused the request before it counted; an `Abort` follows.
    """

    to: str
    seq: int
    room: int
    num_prompt_tokens: int


class Reserve(msgspec.Struct, frozen=True, tag="reserve", kw_only=True):
    """Decode has `prefix_len` tokens; the rest goes to `pages`, in prompt order, and the state to `slot`."""

    to: str
    seq: int
    room: int
    prefix_len: int
    pages: list[int]
    slot: int
    num_prompt_tokens: int


class Abort(msgspec.Struct, frozen=True, tag="abort", kw_only=True):
    """Decode wants the room's memory back; answered by `Settled` once no write to it is under way."""

    to: str
    room: int
    reason: str


class Received(msgspec.Struct, frozen=True, tag="received", kw_only=True):
    """Decode has the room's record; prefill may forget it."""

    to: str
    room: int


class Beat(msgspec.Struct, frozen=True, tag="beat", kw_only=True):
    """Decode lives. `echo` is the last stamp it saw of prefill, which bounds how old this news can be."""

    to: str
    seq: int
    echo: float
    announced: list[int]
    reserved: list[int]
    closing: list[int]


class Leave(msgspec.Struct, frozen=True, tag="leave", kw_only=True):
    """Decode ends in order; it wants nothing any more."""

    to: str


ToPrefill = Hello | Announce | Reserve | Abort | Received | Beat | Leave


class Welcome(msgspec.Struct, frozen=True, tag="welcome", kw_only=True):
    """Prefill takes the decode instance on."""

    sender: str
    stamp: float


class Refused(msgspec.Struct, frozen=True, tag="refused", kw_only=True):
    """Prefill will never write to this decode instance, and why. It has ended `rooms`, which the greeting named."""

    sender: str
    reason: str
    rooms: list[int] = []


class Stranger(msgspec.Struct, frozen=True, tag="stranger", kw_only=True):
    """Prefill does not know this decode instance, or is not the instance it asked for."""

    sender: str


class Pulse(msgspec.Struct, frozen=True, tag="pulse", kw_only=True):
    """Answer to a `Beat`: the listed rooms that prefill is working on."""

    sender: str
    stamp: float
    alive: list[int]


class Unknown(msgspec.Struct, frozen=True, tag="unknown", kw_only=True):
    """Decode waits for a room that prefill has never heard of: say it again."""

    sender: str
    room: int


class Done(msgspec.Struct, frozen=True, tag="done", kw_only=True):
    """All of the room's writes have ended; the record that makes them valid. `room` is its stamp."""

    sender: str
    room: int
    first_token: int
    cached_tokens: int
    extras: bytes
    stats: TransferStats


class RoomFailed(msgspec.Struct, frozen=True, tag="failed", kw_only=True):
    """The room ends without a result. Writes may still be under way: see `Settled`."""

    sender: str
    room: int
    reason: str
    status: int


class Settled(msgspec.Struct, frozen=True, tag="settled", kw_only=True):
    """No write to the room's memory is under way, and none will start."""

    sender: str
    room: int


class Gone(msgspec.Struct, frozen=True, tag="gone", kw_only=True):
    """Prefill ends in order; none of its writes is under way."""

    sender: str


ToDecode = Welcome | Refused | Stranger | Pulse | Unknown | Done | RoomFailed | Settled | Gone

encode = msgspec.msgpack.Encoder().encode
decode_to_prefill = msgspec.msgpack.Decoder(ToPrefill).decode
decode_to_decode = msgspec.msgpack.Decoder(ToDecode).decode


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What `GET /disagg/endpoint` of a prefill instance answers, as JSON."""

    address: str
    layout_hash: str
    instance: str


decode_endpoint = msgspec.json.Decoder(Endpoint).decode
