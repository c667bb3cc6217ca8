"""The request bodies and stream events of the endpoints that engines of this kind offer.

One `Wire` per endpoint: it writes a body and reads the events of one answer into an `Answer`. It keeps every count that
the server gave and the client's own count beside it, and never replaces one by the other.
"""

import dataclasses
from typing import Any, Protocol

import orjson

from workloads.spec import Workload
from workloads.traffic import Prompt


class EventError(Exception):
    """An event that is no answer: `kind` is a record's error kind."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclasses.dataclass(slots=True)
class Answer:
    """What an answer said so far."""

    output_tokens: int | None = None
    output_tokens_seen: int | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    num_verify: int | None = None
    accepted_drafts: int | None = None
    accept_length: float | None = None
    prefill_worker: str | None = None
    decode_worker: str | None = None
    transfer_tail_s: float | None = None
    handoff_s: float | None = None
    text: str = ""
    output_ids: list[int] = dataclasses.field(default_factory=list)
    is_done: bool = False
    """The end marker arrived."""


@dataclasses.dataclass(slots=True, frozen=True)
class Arrival:
    """Tokens that one event brought: how many, where the server says so, and whether any is not reasoning."""

    num_tokens: int | None
    is_answer: bool


class Wire(Protocol):
    """One endpoint."""

    path: str

    def body(self, prompt: Prompt, rid: str) -> bytes:
        """The JSON body of a request."""
        ...

    def read(self, payload: bytes, answer: Answer) -> Arrival | None:
        """Take one event's payload; None when it brought no tokens. Raises EventError."""
        ...


def wire_for(workload: Workload) -> Wire:
    """The wire of the workload's endpoint."""
    kinds: dict[str, type[GenerateWire] | type[CompletionsWire]] = {
        "generate": GenerateWire,
        "completions": CompletionsWire,
        "chat": ChatWire,
    }
    return kinds[workload.endpoint](workload)


def parse_event(payload: bytes) -> Any:
    """An event's JSON. Raises EventError for what is no JSON object, and for an error sent as an event."""
    try:
        event = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise EventError("bad_event", f"an event is not JSON: {payload[:80]!r}") from error
    if not isinstance(event, dict):
        raise EventError("bad_event", f"an event is not a JSON object: {payload[:80]!r}")
    if fault := event.get("error"):
        message = fault.get("message", fault) if isinstance(fault, dict) else fault
        raise EventError("error_event", f"the server sent an error inside a 200: {message}")
    return event


class GenerateWire:
    """`/generate`: cumulative text, counts in `meta_info` of every event."""

    path = "/generate"

    def __init__(self, workload: Workload) -> None:
        sampling = workload.sampling
        self._keep_text = workload.keep_text or workload.source.kind == "chat"
        self._params: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "ignore_eos": sampling.ignore_eos,
        }
        if sampling.stop:
            self._params["stop"] = list(sampling.stop)

    def body(self, prompt: Prompt, rid: str) -> bytes:
        """The body, with token ids where the prompt has them."""
        what = {"text": prompt.text} if prompt.token_ids is None else {"input_ids": prompt.token_ids}
        params = self._params | {"max_new_tokens": prompt.output_tokens}
        return orjson.dumps(what | {"rid": rid, "stream": True, "sampling_params": params}, option=_NUMPY)

    def read(self, payload: bytes, answer: Answer) -> Arrival | None:
        """Take one event: the growth of `completion_tokens` is what arrived."""
        if payload == b"[DONE]":
            answer.is_done = True
            return None
        event = parse_event(payload)
        meta = event.get("meta_info")
        if not isinstance(meta, dict):
            raise EventError("bad_event", "an event of /generate has no meta_info")
        _read_meta(meta, answer)
        text = event.get("text") or ""
        if self._keep_text:
            answer.text = text or answer.text
            answer.output_ids = event.get("output_ids") or answer.output_ids
        if event.get("output_ids"):
            answer.output_tokens_seen = len(event["output_ids"])
        count = meta.get("completion_tokens")
        if count is None:
            raise EventError("bad_event", "an event of /generate has no meta_info.completion_tokens")
        new = int(count) - (answer.output_tokens or 0)
        answer.output_tokens = int(count)
        return Arrival(new, is_answer=True) if new > 0 else None


class CompletionsWire:
    """`/v1/completions`: text deltas; counts in `usage`, running where the server offers it."""

    path = "/v1/completions"

    def __init__(self, workload: Workload) -> None:
        sampling = workload.sampling
        self._keep_text = workload.keep_text or workload.source.kind == "chat"
        self._fixed: dict[str, Any] = {
            "model": workload.model,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "ignore_eos": sampling.ignore_eos,
        }
        if sampling.stop:
            self._fixed["stop"] = list(sampling.stop)

    def body(self, prompt: Prompt, rid: str) -> bytes:
        """The body, with token ids where the prompt has them."""
        what = prompt.text if prompt.token_ids is None else prompt.token_ids
        return orjson.dumps(self._fixed | {"prompt": what, "max_tokens": prompt.output_tokens}, option=_NUMPY)

    def read(self, payload: bytes, answer: Answer) -> Arrival | None:
        """Take one event; usage may come with text, with empty text, or with no choice at all."""
        if payload == b"[DONE]":
            answer.is_done = True
            return None
        event = parse_event(payload)
        text, is_answer = "", False
        for choice in event.get("choices") or ():
            delta, is_answer = self._text_of(choice)
            text += delta
            reason = choice.get("finish_reason")
            answer.finish_reason = reason or answer.finish_reason
            if isinstance(meta := choice.get("meta_info"), dict):
                _read_meta(meta, answer)
        _read_cached_details(event, answer)
        if self._keep_text:
            answer.text += text
        before, known = answer.output_tokens or 0, answer.output_tokens is not None
        usage = event.get("usage")
        if isinstance(usage, dict):
            _read_usage(usage, answer)
            new = (answer.output_tokens or 0) - before
            if text or (known and new > 0):
                return Arrival(new, is_answer or not text) if new > 0 else None
            return None
        return Arrival(None, is_answer) if text else None

    def _text_of(self, choice: dict[str, Any]) -> tuple[str, bool]:
        text = choice.get("text") or ""
        return text, bool(text)


class ChatWire(CompletionsWire):
    """`/v1/chat/completions`: deltas of content and of reasoning; both are tokens."""

    path = "/v1/chat/completions"

    def body(self, prompt: Prompt, rid: str) -> bytes:
        """The body: the prompt's text as one user message."""
        messages = [{"role": "user", "content": prompt.text}]
        return orjson.dumps(self._fixed | {"messages": messages, "max_completion_tokens": prompt.output_tokens})

    def _text_of(self, choice: dict[str, Any]) -> tuple[str, bool]:
        delta = choice.get("delta") or {}
        content = delta.get("content") or ""
        return (delta.get("reasoning_content") or "") + content, bool(content)


_NUMPY = orjson.OPT_SERIALIZE_NUMPY


def _read_meta(meta: dict[str, Any], answer: Answer) -> None:
    if (count := meta.get("prompt_tokens")) is not None:
        answer.input_tokens = int(count)
    if (count := meta.get("cached_tokens")) is not None:
        answer.cached_tokens = int(count)
    reason = meta.get("finish_reason")
    if reason is None:
        return
    answer.finish_reason = reason.get("type") if isinstance(reason, dict) else str(reason)
    if answer.finish_reason == "abort":
        raise EventError("error_event", f"the server gave the request up: {reason}")
    if (count := meta.get("spec_verify_ct")) is not None:
        answer.num_verify = int(count)
    if (count := meta.get("spec_num_correct_drafts")) is not None:
        answer.accepted_drafts = int(count)
    if (length := meta.get("spec_accept_length")) is not None:
        answer.accept_length = float(length)
    answer.prefill_worker = meta.get("prefill_worker")
    answer.decode_worker = meta.get("decode_worker")
    if isinstance(timing := meta.get("timing"), dict):
        answer.transfer_tail_s, answer.handoff_s = _handed_over(timing)


def _handed_over(timing: dict[str, Any]) -> tuple[float | None, float | None]:
    """The tail of a transfer, and what passed until decode had the request.

    Prefill and decode each read their own clock, which is the same one only on one host: a difference that is longer
    than the whole time since the last chunk, or negative, is of two clocks and says nothing.
    """
    tail_s, last_s, arrived_s, decode_s = (
        timing.get(name) for name in ("transfer_tail_s", "transfer_last_at_s", "transfer_arrived_at_s", "transfer_s")
    )
    if tail_s is None or last_s is None or arrived_s is None or decode_s is None:
        return tail_s, None
    handoff_s = float(arrived_s) - float(last_s)
    return tail_s, handoff_s if 0 <= handoff_s <= decode_s else None


def _read_usage(usage: dict[str, Any], answer: Answer) -> None:
    if (count := usage.get("completion_tokens")) is not None:
        answer.output_tokens = int(count)
    if (count := usage.get("prompt_tokens")) is not None:
        answer.input_tokens = int(count)
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and details.get("cached_tokens") is not None:
        answer.cached_tokens = int(details["cached_tokens"])


def _read_cached_details(event: dict[str, Any], answer: Answer) -> None:
    details = (event.get("sglext") or {}).get("cached_tokens_details")
    if isinstance(details, dict):
        answer.cached_tokens = sum(int(v) for v in details.values() if isinstance(v, int))
