"""From parsed bodies to what a worker is told: prompts, sampling and meeting points, each checked once.

Knows the limits of the instance and nothing of HTTP or of time. Everything it refuses is one sentence.
"""

import contextlib
import ipaddress
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stack.core.errors import RequestError
from stack.core.messages import Bootstrap
from stack.core.sampling import SamplingParams
from stack.server.bodies import ChatBody, CompletionBody, GenerateBody, OpenAiBody, SamplingBody

Prompt = str | list[int]

_MAX_SAMPLES = 128
_MAX_PROMPTS = 4096
_MAX_STOP_LENGTH = 1024
_MAX_RID_LENGTH = 256
_MAX_HOST_LENGTH = 253
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one instance can take."""

    role: Literal["single", "prefill", "decode"]
    needs_meeting: bool
    """Whether a request must say where its other half is."""
    vocab_size: int
    max_context: int
    max_total_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prompt to be sampled `num_samples` times."""

    rid: str
    prompt: Prompt
    sampling: SamplingBody
    default_max_tokens: int | None
    """What max_new_tokens is without one: a number, or None for all that the context leaves."""
    bootstrap: Bootstrap | None
    add_special_tokens: bool = True

    @property
    def num_samples(self) -> int:
        """`n` of the request."""
        return self.sampling.n or 1


def generate_tasks(body: GenerateBody, rid: str, limits: Limits) -> tuple[list[Task], bool]:
    """The tasks of a /generate body, and whether it is a batch."""
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("give the prompt either as text or as input_ids, one of the two")
    if body.return_logprob if not isinstance(body.return_logprob, list) else any(body.return_logprob):
        raise RequestError("return_logprob is not supported; leave it out or set it to false")
    for name in SamplingBody.__struct_fields__:
        if name != "watermark" and getattr(body, name) is not None:  # SGLang knows a watermark in both places
            raise RequestError(f"{name} stands beside sampling_params; put it inside")
    source: Any = body.text if body.text is not None else body.input_ids
    prompts, is_batch = _prompts(source, "text" if body.text is not None else "input_ids")
    samplings = body.sampling_params
    if not isinstance(samplings, list):
        samplings = [samplings or SamplingBody()] * len(prompts)
    if len(samplings) != len(prompts):
        raise RequestError(f"sampling_params lists {len(samplings)} entries for {len(prompts)} prompts")
    rids = _rids(body.rid, rid, len(prompts), is_batch)
    meetings = _meetings(body, len(prompts), limits)
    tasks = [
        Task(rid=r, prompt=p, sampling=s, default_max_tokens=128, bootstrap=m)
        for r, p, s, m in zip(rids, prompts, samplings, meetings, strict=True)
    ]
    return _checked(tasks, limits), is_batch


def completion_tasks(body: CompletionBody, rid: str, limits: Limits) -> list[Task]:
    """The tasks of a /v1/completions body."""
    if body.prompt is None:
        raise RequestError("give a prompt")
    if body.logprobs is not None and body.logprobs is not False:
        raise RequestError("logprobs are not supported; leave the field out")
    prompts, is_batch = _prompts(body.prompt, "prompt")
    sampling = _openai_sampling(body)
    rids = _rids(body.rid, rid, len(prompts), is_batch)
    meetings = _meetings(body, len(prompts), limits)
    tasks = [
        Task(rid=r, prompt=p, sampling=sampling, default_max_tokens=16, bootstrap=m)
        for r, p, m in zip(rids, prompts, meetings, strict=True)
    ]
    return _checked(tasks, limits)


def chat_task(body: ChatBody, prompt: str, rid: str, limits: Limits) -> list[Task]:
    """The one task of a chat whose rendered messages are `prompt`."""
    if body.logprobs:
        raise RequestError("logprobs are not supported; leave the field out")
    task = Task(
        rid=_rids(body.rid, rid, 1, False)[0],
        prompt=prompt,
        sampling=_openai_sampling(body),
        default_max_tokens=None,
        bootstrap=_meetings(body, 1, limits)[0],
        add_special_tokens=False,
    )
    return _checked([task], limits)


def sampling_params(task: Task, sample: int, num_prompt_tokens: int, limits: Limits) -> SamplingParams:
    """The checked parameters of one sample. Raises RequestError for nonsense and for what does not fit."""
    body = task.sampling
    room = max(0, min(limits.max_context, limits.max_total_tokens) - num_prompt_tokens)
    asked = body.max_new_tokens
    if asked is None:
        asked = room if task.default_max_tokens is None else task.default_max_tokens
    params = SamplingParams(
        max_new_tokens=asked,
        min_new_tokens=body.min_new_tokens or 0,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=_top_k(body.top_k, limits.vocab_size),
        min_p=body.min_p or 0.0,
        seed=_seed(body.sampling_seed, sample),
        stop=_stops(body.stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        skip_special_tokens=body.skip_special_tokens is not False,
    )
    _check_fit(num_prompt_tokens, asked, limits)
    params.check(limits.vocab_size)
    return params


def check_token_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Raise RequestError unless there are ids and each is one of the model's."""
    if not ids:
        raise RequestError("the prompt is empty; give at least one token")
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise RequestError(f"token id {wrong} is outside the vocabulary; ids run from 0 to {vocab_size - 1}")


def _check_fit(num_prompt_tokens: int, max_new_tokens: int, limits: Limits) -> None:
    if num_prompt_tokens > limits.max_context:
        raise RequestError(
            f"the prompt has {num_prompt_tokens} tokens, more than the context of {limits.max_context}; shorten it"
        )
    if num_prompt_tokens + max_new_tokens > limits.max_context:
        raise RequestError(
            f"{num_prompt_tokens} prompt tokens and {max_new_tokens} new ones exceed the context of "
            f"{limits.max_context}; ask for at most {limits.max_context - num_prompt_tokens} new tokens"
        )
    needed = num_prompt_tokens + (0 if limits.role == "prefill" else max_new_tokens)
    if needed > limits.max_total_tokens:
        raise RequestError(
            f"the request needs {needed} tokens of cache and this instance holds {limits.max_total_tokens}; "
            "shorten it or raise cache.budget_bytes"
        )


def _prompts(source: Any, name: str) -> tuple[list[Prompt], bool]:
    """One prompt or a batch of one kind: a text, a list of ids, or a list of either."""
    if isinstance(source, str):
        return [source], False
    kinds = set(map(type, source))
    if kinds == {int}:
        return [source], False
    if kinds in ({str}, {list}):
        if len(source) > _MAX_PROMPTS:
            raise RequestError(f"{name} holds {len(source)} prompts; send at most {_MAX_PROMPTS} at once")
        return source, True
    if not kinds:
        raise RequestError(f"{name} is empty; give at least one token")
    raise RequestError(f"{name} mixes kinds; give token ids alone, or a list of prompts of one kind")


def _rids(given: str | list[str] | None, made: str, count: int, is_batch: bool) -> list[str]:
    if isinstance(given, list):
        if len(given) != count:
            raise RequestError(f"rid lists {len(given)} ids for {count} prompts")
        rids = given
    else:
        base = made if given is None else given
        rids = [f"{base}_{i}" for i in range(count)] if is_batch else [base]
    if any(not 0 < len(rid) <= _MAX_RID_LENGTH for rid in rids):
        raise RequestError(f"a rid must have 1 to {_MAX_RID_LENGTH} characters")
    return rids


def _meetings(body: Any, count: int, limits: Limits) -> list[Bootstrap | None]:
    if not limits.needs_meeting:
        return [None] * count
    hosts, ports, rooms = (
        _spread(value, count, name)
        for name in ("bootstrap_host", "bootstrap_port", "bootstrap_room")
        for value in (getattr(body, name),)
    )
    return [_meeting(*triple, limits.role) for triple in zip(hosts, ports, rooms, strict=True)]


def _spread(value: Any, count: int, name: str) -> list[Any]:
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise RequestError(f"{name} lists {len(value)} values for {count} prompts")
    return value


def _meeting(host: str | None, port: int | None, room: int | None, role: str) -> Bootstrap:
    if not host or room is None:
        raise RequestError(
            f"this is a {role} instance: send requests through a router, which adds bootstrap_host, "
            "bootstrap_port and bootstrap_room"
        )
    if port is None:
        raise RequestError(
            "bootstrap_port is null: start the router with the prefill instance's API port behind its URL, "
            "as in --prefill http://HOST:PORT PORT"
        )
    if not 0 < port < 65536:
        raise RequestError(f"bootstrap_port must lie between 1 and 65535, not {port}")
    if not 0 <= room < 2**63:
        raise RequestError("bootstrap_room must lie between 0 and 2^63 - 1")
    return Bootstrap(host=_checked_host(host), port=port, room=room)


def _checked_host(host: str) -> str:
    """A name or address, IPv6 without the brackets that a router may leave around it."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if _IPV6.fullmatch(bare) and ":" in bare:
        with contextlib.suppress(ValueError):
            ipaddress.IPv6Address(bare)
            return bare
    if len(host) <= _MAX_HOST_LENGTH and _HOST_NAME.fullmatch(host):
        return host
    raise RequestError(
        "bootstrap_host must be a host name or an IP address alone, without scheme, user, port or path, "
        f"not {host[:80]!r}"
    )


def _checked(tasks: list[Task], limits: Limits) -> list[Task]:
    for task in tasks:
        _check_sampling(task.sampling, limits)
        if not isinstance(task.prompt, str):
            check_token_ids(task.prompt, limits.vocab_size)
    return tasks


def _check_sampling(body: SamplingBody, limits: Limits) -> None:
    """Refuse what the engine cannot do, rather than answering something else."""
    for name, neutral in (("frequency_penalty", 0.0), ("presence_penalty", 0.0), ("repetition_penalty", 1.0)):
        if getattr(body, name) not in (None, neutral):
            raise RequestError(f"{name} is not supported; leave it out or set it to {neutral:g}")
    for name in ("logit_bias", "regex", "ebnf", "json_schema", "structural_tag", "stop_regex"):
        if getattr(body, name):
            raise RequestError(f"{name} is not supported; leave it out")
    if (body.beam_width or 1) != 1:
        raise RequestError("beam_width is not supported; leave it out")
    samples = 1 if body.n is None else body.n
    if not 1 <= samples <= _MAX_SAMPLES:
        raise RequestError(f"n must lie between 1 and {_MAX_SAMPLES}, not {samples}")
    if samples > 1 and limits.needs_meeting:
        raise RequestError("n must be 1 with separate prefill and decode instances; send the request n times")


def _openai_sampling(body: OpenAiBody) -> SamplingBody:
    """The sampling fields of an OpenAI body under their own names."""
    kind = (body.response_format or {}).get("type", "text")
    if kind != "text":
        raise RequestError("response_format other than text is not supported; leave it out")
    for name in ("custom_logit_processor", "suffix", "input_ids", "continue_final_message"):
        if getattr(body, name, None):
            raise RequestError(f"{name} is not supported; leave it out")
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if asked is not None:
        body.max_new_tokens = asked
    if body.min_tokens is not None:
        body.min_new_tokens = body.min_tokens
    if body.seed is not None:
        body.sampling_seed = body.seed
    return body


def _top_k(value: int | None, vocab_size: int) -> int:
    return -1 if value is None or value >= vocab_size else value


def _seed(given: int | None, sample: int) -> int:
    if given is None:
        return random.getrandbits(63)
    if not 0 <= given < 2**63:
        raise RequestError("the seed must lie between 0 and 2^63 - 1")
    return (given + sample) % 2**63


def _stops(value: str | list[str] | None) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else tuple(value or ())
    if any(len(stop) > _MAX_STOP_LENGTH for stop in stops):
        raise RequestError(f"a stop string must have at most {_MAX_STOP_LENGTH} characters")
    return stops
