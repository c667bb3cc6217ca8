"""The JSON bodies of the API, as typed structs: what is known is checked, what is unknown is ignored, null is default.

Knows nothing of what the values mean; a body that does not fit is one sentence that names the field.
"""

from typing import Any, TypeVar

import msgspec

from stack.core.errors import RequestError

BodyT = TypeVar("BodyT")


class SamplingBody(msgspec.Struct, kw_only=True):
    """Sampling fields, in `sampling_params` of /generate and at the top level of the OpenAI bodies."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    sampling_seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: str | None = None


class Meeting(msgspec.Struct, kw_only=True):
    """Where the halves of a disaggregated request meet, as the router injects it: one value, or one a prompt."""

    bootstrap_host: str | list[str | None] | None = None
    bootstrap_port: int | list[int | None] | None = None
    bootstrap_room: int | list[int | None] | None = None


class GenerateBody(Meeting, kw_only=True):
    """POST /generate."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: SamplingBody | list[SamplingBody] | None = None
    stream: bool | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    """`stream_options` of the OpenAI bodies."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAiBody(SamplingBody, kw_only=True):
    """What both OpenAI bodies share."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    rid: str | list[str] | None = None
    return_cached_tokens_details: bool | None = None
    response_format: dict[str, Any] | None = None
    bootstrap_host: str | list[str | None] | None = None
    bootstrap_port: int | list[int | None] | None = None
    bootstrap_room: int | list[int | None] | None = None


class CompletionBody(OpenAiBody, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[int | str | list[int]] | None = None
    logprobs: int | bool | None = None
    echo: bool | None = None


class ChatBody(OpenAiBody, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] | None = None
    max_completion_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    tools: list[dict[str, Any]] | None = None
    logprobs: bool | None = None
    return_meta_info: bool | None = None


class AbortBody(msgspec.Struct, kw_only=True):
    """POST /abort_request."""

    rid: str | None = None
    abort_all: bool | None = None


class ProfileBody(msgspec.Struct, kw_only=True):
    """POST /start_profile; unknown options are ignored."""

    output_dir: str | None = None
    num_steps: int | None = None


def parse(kind: type[BodyT], body: bytes) -> BodyT:
    """The struct that `body` holds; an empty body is an empty object. Raises RequestError with one sentence."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise RequestError(_field_sentence(str(error))) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None


def _field_sentence(message: str) -> str:
    """`Expected `int | null`, got `str` - at `$.top_k`` as a sentence that starts with the field."""
    what, _, where = message.replace("`", "").partition(" - at $")
    what = what.replace(" | ", " or ")
    return f"{where.lstrip('.') or 'the body'}: {what[:1].lower()}{what[1:]}"
