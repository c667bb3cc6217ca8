"""The JSON bodies of the API, as typed structs: what is known is checked, null is default.

A sampling parameter or OpenAI field that nobody knows is refused, since a mistyped one would otherwise be answered with
another setting. `Inert` fields are known from OpenAI's or SGLang's protocol, accepted, and change nothing here. Other
unknown fields of /generate are ignored: routers add some of their own. Knows nothing of what the values mean; a body
that does not fit is one sentence that names the field.
"""

import difflib
import re
from typing import Any, TypeVar

import msgspec

from stack.core.errors import RequestError

BodyT = TypeVar("BodyT")
Inert = Any
"""A field that is taken and not acted on."""


class SamplingBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
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
    structural_tag: Any = None
    stop_regex: Any = None
    beam_width: int | None = None
    spaces_between_special_tokens: Inert = None
    no_stop_trim: Inert = None
    stream_interval: Inert = None
    custom_params: Inert = None
    watermark: Inert = None


class GenerateBody(SamplingBody, kw_only=True, forbid_unknown_fields=False):
    """POST /generate. Sampling fields are known at the top level too, so that they can be sent to their place."""

    bootstrap_host: str | list[str | None] | None = None
    bootstrap_port: int | list[int | None] | None = None
    bootstrap_room: int | list[int | None] | None = None
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
    max_completion_tokens: int | None = None
    """The newer name of `max_tokens`; it wins."""
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
    routed_dp_rank: Inert = None
    disagg_prefill_dp_rank: Inert = None
    data_parallel_rank: Inert = None
    user: Inert = None
    metadata: Inert = None
    store: Inert = None
    service_tier: Inert = None
    lora_path: Inert = None
    session_id: Inert = None
    session_params: Inert = None
    priority: Inert = None
    extra_key: Inert = None
    cache_salt: Inert = None
    custom_labels: Inert = None
    custom_logit_processor: Any = None
    images_config: Inert = None
    mm_processor_kwargs: Inert = None
    return_hidden_states: Inert = None
    return_routed_experts: Inert = None
    routed_experts_start_len: Inert = None
    return_spec_tokens_details: Inert = None
    return_token_ids: Inert = None


class CompletionBody(OpenAiBody, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[int | str | list[int]] | None = None
    logprobs: int | bool | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Inert = None


class ChatBody(OpenAiBody, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    tools: list[dict[str, Any]] | None = None
    logprobs: bool | None = None
    return_meta_info: bool | None = None
    input_ids: Any = None
    continue_final_message: bool | None = None
    top_logprobs: Inert = None
    separate_reasoning: Inert = None
    stream_reasoning: Inert = None
    thinking: Inert = None
    task: Inert = None
    verbosity: Inert = None
    modalities: Inert = None
    audio: Inert = None
    prediction: Inert = None
    moderation: Inert = None
    tool_choice: Inert = None
    parallel_tool_calls: Inert = None
    functions: Inert = None
    function_call: Inert = None
    web_search_options: Inert = None
    prompt_cache_key: Inert = None
    prompt_cache_options: Inert = None
    prompt_cache_retention: Inert = None
    safety_identifier: Inert = None
    max_dynamic_patch: Inert = None
    min_dynamic_patch: Inert = None
    use_audio_in_video: Inert = None
    video_config: Inert = None
    return_prompt_token_ids: Inert = None
    return_input_ids_in_sglext: Inert = None
    return_output_ids_in_sglext: Inert = None
    return_sampling_mask: Inert = None
    sampling_logprobs_mode: Inert = None
    return_flat_raw_output_top_logprobs: Inert = None
    return_flat_raw_top_logprobs_b64: Inert = None


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
        raise RequestError(_unknown_sentence(str(error), kind) or _field_sentence(str(error))) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None


def _unknown_sentence(message: str, kind: type) -> str:
    """`Object contains unknown field `temprature` - at `$.sampling_params`` as a sentence; empty for other messages."""
    found = re.match(r"Object contains unknown field `(.*?)`(?: - at `\$\.?(.*)`)?$", message, re.DOTALL)
    if found is None:
        return ""
    name, where = found[1][:80], f"{found[2]}." if found[2] else ""
    known = SamplingBody.__struct_fields__ + (() if where else ("max_tokens", "min_tokens", "seed"))
    near = difflib.get_close_matches(name, known if where else kind.__struct_fields__, n=1)  # type: ignore[attr-defined]
    hint = f", did you mean {near[0]}?" if near else ";"
    return f"{where}{name} is unknown{hint} known sampling parameters are {', '.join(sorted(known))}"


def _field_sentence(message: str) -> str:
    """`Expected `int | null`, got `str` - at `$.top_k`` as a sentence that starts with the field."""
    what, _, where = message.replace("`", "").partition(" - at $")
    what = what.replace(" | ", " or ")
    return f"{where.lstrip('.') or 'the body'}: {what[:1].lower()}{what[1:]}"
