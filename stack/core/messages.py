"""What the HTTP process and the worker process say to each other: msgpack of these structs over ZeroMQ, nothing else.

HTTP -> worker: `ToWorker`. Worker -> HTTP: `FromWorker`. Every struct is tagged, so an unknown or malformed message is
a decode error and never a guess.
"""

import msgspec

from stack.core.sampling import SamplingParams
from stack.core.tokens import TOKEN_BYTES


class Bootstrap(msgspec.Struct, frozen=True):
    """Where the two halves of a disaggregated request meet; `room` names one attempt and is never reused."""

    host: str
    port: int
    room: int


class Generate(msgspec.Struct, frozen=True, tag="generate", kw_only=True):
    """Compute a prompt and generate. `rid` is unique in this instance for the request's life."""

    rid: str
    prompt: bytes
    """Token ids as `stack.core.tokens.pack_tokens` packs them."""
    sampling: SamplingParams
    bootstrap: Bootstrap | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt) // TOKEN_BYTES


class Refuse(msgspec.Struct, frozen=True, tag="refuse", kw_only=True):
    """A request was answered with an error before it became a `Generate`; its other half need not wait for it."""

    bootstrap: Bootstrap
    reason: str
    status: int


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Stop a request, wherever it is; unknown ids are ignored. An empty `rid` stops all."""

    rid: str


class Flush(msgspec.Struct, frozen=True, tag="flush"):
    """Drop the prefix caches once idle, waiting up to `timeout_s`; answered by `Flushed`."""

    call: int
    timeout_s: float


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Finish what runs, refuse what comes; answered by `Drained` when nothing is left."""

    call: int


class GetStats(msgspec.Struct, frozen=True, tag="get_stats"):
    """Ask for one `Stats`."""

    call: int


class Profile(msgspec.Struct, frozen=True, tag="profile"):
    """Record a trace of the next `num_steps` steps into `folder`; 0 steps ends one that runs."""

    call: int
    folder: str
    num_steps: int


ToWorker = Generate | Refuse | Abort | Flush | Drain | GetStats | Profile


class Ready(msgspec.Struct, frozen=True, tag="ready", kw_only=True):
    """The worker can serve. `plan` is the memory plan, `impls` the implementation each op bound."""

    max_context: int
    max_total_tokens: int
    max_running: int
    plan: dict[str, float | int | str]
    impls: dict[str, str]
    disagg_address: str = ""
    """Prefill: control address for `GET /disagg/endpoint`, such as `tcp://127.0.0.1:41000`; empty on other roles."""
    layout_hash: str = ""
    """Digest of what two halves must agree on (`stack.cache.layout`); empty on `single`."""
    instance: str = ""
    """Name of this worker process, new at every start; a peer recognises a restart by it."""


class Tokens(msgspec.Struct, frozen=True, tag="tokens", kw_only=True):
    """New tokens of a request; with `finish` set, the last message about it."""

    rid: str
    token_ids: list[int]
    finish: str | None = None
    """`stop`, `length` or `abort`."""
    matched: int | None = None
    """The end token behind `stop`; it is the last of `token_ids`."""
    error: str | None = None
    """With `abort`: one sentence for the client."""
    status: int = 200
    """With `abort`: the HTTP status it maps to (499 client gone, 4xx refused, 500 failed, 503 overloaded)."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed for this request, on whichever side they were found."""
    num_verify: int = 0
    """Verify steps so far."""
    num_accepted_drafts: int = 0
    """Drafted tokens accepted so far."""
    num_swaps: int = 0
    """Times the request had to give way."""
    timing: dict[str, float] | None = None
    """With `finish`: seconds in queue, prefill, transfer and decode; bytes and descriptors of a transfer."""


class Flushed(msgspec.Struct, frozen=True, tag="flushed"):
    """Answer to `Flush`; `reason` is empty when the caches were dropped."""

    call: int
    reason: str


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """Answer to `Drain`."""

    call: int


class Stats(msgspec.Struct, frozen=True, tag="stats", kw_only=True):
    """Counters and gauges, by the names that /metrics and the per-step log use."""

    call: int
    values: dict[str, float]


class Profiled(msgspec.Struct, frozen=True, tag="profiled"):
    """Answer to `Profile`: the trace file, or an empty path and the reason."""

    call: int
    path: str
    reason: str


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """The worker is about to exit; every request ends with this sentence."""

    message: str


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """A sign of life of the worker's heartbeat thread; `turn_s` is how long its loop has been in the present turn."""

    turn_s: float


FromWorker = Ready | Tokens | Flushed | Drained | Stats | Profiled | Fatal | Alive

HEARTBEAT_PEER = b"heartbeat"
"""ZeroMQ identity of the socket that sends `Alive` and nothing else."""

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
