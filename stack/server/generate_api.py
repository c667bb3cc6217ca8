"""POST /generate: text or token ids in; text, token ids and `meta_info` out, streamed as the whole text so far."""

from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stack.server.bodies import GenerateBody, parse
from stack.server.generation import Generation
from stack.server.instance import Instance
from stack.server.intake import generate_tasks
from stack.server.requests import instance_of, open_request, request_id
from stack.server.responses import EventStream, json_response, wait_for_all


async def generate(request: Request) -> Response:
    """Answer one prompt with an object, a batch or n > 1 with a list in input order."""
    instance = instance_of(request)
    body = parse(GenerateBody, await open_request(request))
    rid, headers = request_id(request)
    tasks, is_batch = generate_tasks(body, rid, instance.limits)
    group = await instance.submit(tasks)
    is_list = is_batch or len(group.generations) > 1
    if body.stream:
        return EventStream(group, _Events(instance, is_list), instance, headers)
    await wait_for_all(group, request, instance)
    answers = [_answer(generation, instance) for generation in group.generations]
    return json_response(answers if is_list else answers[0], headers=headers)


def meta_info(generation: Generation, instance: Instance) -> dict[str, Any]:
    """Counts of a generation: the few that every event carries, and all of them at its end."""
    finish = generation.finish
    num_tokens = len(generation.token_ids)
    info: dict[str, Any] = {
        "id": generation.client_rid,
        "finish_reason": None,
        "prompt_tokens": generation.num_prompt_tokens,
        "completion_tokens": num_tokens,
        "cached_tokens": generation.cached_tokens,
    }
    if finish is None:
        return info
    info |= {
        "finish_reason": _finish_reason(generation),
        "cached_tokens_details": cached_details(generation),
        "reasoning_tokens": 0,
        "weight_version": "default",
        "num_retractions": generation.num_swaps,
        "e2e_latency": generation.latency_s,
    }
    if generation.timing:
        info["timing"] = generation.timing
    if generation.num_verify:
        proposed = generation.num_verify * (instance.config.speculation.width - 1)
        info |= {
            "spec_verify_ct": generation.num_verify,
            "spec_accept_length": num_tokens / generation.num_verify,
            "spec_num_correct_drafts": generation.num_accepted_drafts,
            "spec_num_proposed_drafts": proposed,
            "spec_accept_rate": generation.num_accepted_drafts / proposed if proposed else 0.0,
        }
    return info


def cached_details(generation: Generation) -> dict[str, int]:
    """Where the prompt tokens that were not computed were found; all caches are on the device."""
    return {"device": generation.cached_tokens, "host": 0}


def _finish_reason(generation: Generation) -> dict[str, Any]:
    finish = generation.finish
    assert finish is not None
    if finish.kind == "stop":
        return {"type": "stop", "matched": finish.matched}
    if finish.kind == "length":
        return {"type": "length", "length": len(generation.token_ids)}
    return {"type": "abort", "message": finish.error, "status_code": None, "err_type": None}


def _answer(generation: Generation, instance: Instance) -> dict[str, Any]:
    return {
        "text": generation.text.text,
        "output_ids": generation.token_ids,
        "meta_info": meta_info(generation, instance),
    }


class _Events:
    """One event per news: the text so far and the counts so far; token ids with the last one alone."""

    def __init__(self, instance: Instance, is_list: bool) -> None:
        self._instance = instance
        self._is_list = is_list

    def events(self, generation: Generation) -> Iterator[Any]:
        """The state of a generation."""
        text = generation.text
        event: dict[str, Any] = {
            "text": text.text[: text.stable_length],
            "meta_info": meta_info(generation, self._instance),
        }
        if generation.finish is not None:
            event["output_ids"] = generation.token_ids
        if self._is_list:
            event["index"] = generation.index
        yield event

    def last_events(self) -> Iterator[Any]:
        """Nothing: each generation's last event has said it all."""
        return iter(())
