"""POST /v1/completions and /v1/chat/completions in OpenAI's form, streamed as deltas.

Beyond it, as the clients of other engines know them: `ignore_eos`, `min_tokens`, `return_cached_tokens_details`
(an `sglext` block) and `return_meta_info`.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stack.core.errors import RequestError
from stack.server.bodies import ChatBody, CompletionBody, OpenAiBody, parse
from stack.server.generate_api import cached_details, meta_info
from stack.server.generation import Generation, Group
from stack.server.instance import Instance
from stack.server.intake import Task, chat_task, completion_tasks
from stack.server.requests import instance_of, open_request, request_id
from stack.server.responses import EventStream, json_response, wait_for_all

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


async def completions(request: Request) -> Response:
    """Continue prompts."""
    instance = instance_of(request)
    body = parse(CompletionBody, await open_request(request))
    rid, headers = request_id(request)
    tasks = completion_tasks(body, rid, instance.limits)
    echoes = _echoes(tasks) if body.echo else []
    group = await instance.submit(tasks)
    return await _answer(request, group, _Completion(body, rid, group, instance, echoes), headers)


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    instance = instance_of(request)
    body = parse(ChatBody, await open_request(request))
    rid, headers = request_id(request)
    prompt = await _prompt(body, instance)
    group = await instance.submit(chat_task(body, prompt, rid, instance.limits))
    return await _answer(request, group, _Chat(body, rid, group, instance), headers)


class _Form:
    """What the two forms share: the envelope, usage, and the events that close a stream."""

    kind = ""
    chunk_kind = ""

    def __init__(self, body: OpenAiBody, rid: str, group: Group, instance: Instance) -> None:
        options = body.stream_options
        self.body = body
        self.instance = instance
        self.group = group
        self._envelope = {"id": rid, "created": int(time.time()), "model": instance.config.model.served_name}
        self._with_usage = bool(options and options.include_usage)
        self.with_running_usage = bool(options and options.continuous_usage_stats)
        self._sent = [0] * len(group.generations)

    def answer(self) -> dict[str, Any]:
        """The whole answer of a request that does not stream."""
        whole = self._wrap(self.kind, [self.choice(generation) for generation in self.group.generations])
        whole |= {"usage": usage(self.group.generations), "metadata": {"weight_version": "default"}}
        return whole | self._sglext()

    def choice(self, generation: Generation) -> dict[str, Any]:
        """One choice of a whole answer."""
        raise NotImplementedError

    def last_events(self) -> Iterator[Any]:
        """Cache details and usage, where they were asked for."""
        if self.body.return_cached_tokens_details:
            yield self.chunk(self.empty_choices()) | self._sglext()
        if self._with_usage:
            yield self.chunk([]) | {"usage": usage(self.group.generations)}

    def empty_choices(self) -> list[dict[str, Any]]:
        """Choices of an event that brings no text."""
        return []

    def chunk(self, choices: list[dict[str, Any]], generation: Generation | None = None) -> dict[str, Any]:
        """One event."""
        running = usage([generation]) if generation is not None and self.with_running_usage else None
        return self._wrap(self.chunk_kind, choices) | {"usage": running}

    def fresh(self, generation: Generation) -> str:
        """Text that was not sent yet and will not change any more."""
        start, end = self._sent[generation.index], generation.text.stable_length
        self._sent[generation.index] = max(start, end)
        return generation.text.text[start:end]

    def ending(self, generation: Generation) -> dict[str, Any]:
        """Why a choice ended, null while it has not."""
        finish = generation.finish
        if finish is None:
            return {"finish_reason": None, "matched_stop": None}
        return {"finish_reason": finish.kind, "matched_stop": finish.matched}

    def _wrap(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._envelope, "object": kind, "choices": choices}

    def _sglext(self) -> dict[str, Any]:
        if not self.body.return_cached_tokens_details:
            return {}
        details = [cached_details(generation) for generation in self.group.generations]
        return {"sglext": {"cached_tokens_details": {key: sum(d[key] for d in details) for key in details[0]}}}


class _Completion(_Form):
    kind = chunk_kind = "text_completion"

    def __init__(self, body: CompletionBody, rid: str, group: Group, instance: Instance, echoes: Sequence[str]) -> None:
        super().__init__(body, rid, group, instance)
        self._echoes = echoes
        self._is_first = [True] * len(group.generations)

    def choice(self, generation: Generation) -> dict[str, Any]:
        text = self._echo(generation) + generation.text.text
        return {"index": generation.index, "text": text, "logprobs": None, **self.ending(generation)}

    def events(self, generation: Generation) -> Iterator[Any]:
        text = self.fresh(generation)
        if self._is_first[generation.index]:
            self._is_first[generation.index] = False
            text = self._echo(generation) + text
        if text or generation.finish is not None or self.with_running_usage:
            choice = {"index": generation.index, "text": text, "logprobs": None, **self.ending(generation)}
            yield self.chunk([choice], generation)

    def empty_choices(self) -> list[dict[str, Any]]:
        """One choice without text: a known client looks at the first choice of every completion event."""
        return [{"index": 0, "text": "", "logprobs": None, "finish_reason": None, "matched_stop": None}]

    def _echo(self, generation: Generation) -> str:
        return self._echoes[generation.index] if self._echoes else ""


class _Chat(_Form):
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, body: ChatBody, rid: str, group: Group, instance: Instance) -> None:
        super().__init__(body, rid, group, instance)
        self._with_meta_info = bool(body.return_meta_info)
        self._is_opened = [False] * len(group.generations)

    def choice(self, generation: Generation) -> dict[str, Any]:
        message = {"role": "assistant", "content": generation.text.text, "reasoning_content": None}
        choice = {"index": generation.index, "message": message, "logprobs": None, **self.ending(generation)}
        return choice | self._meta_info(generation)

    def events(self, generation: Generation) -> Iterator[Any]:
        if not self._is_opened[generation.index]:
            self._is_opened[generation.index] = True
            yield self._delta(generation, {"role": "assistant", "content": ""})
        text = self.fresh(generation)
        if text:
            yield self._delta(generation, {"content": text})
        if generation.finish is not None:
            last = {"index": generation.index, "delta": {}, "logprobs": None, **self.ending(generation)}
            yield self.chunk([last | self._meta_info(generation)], generation)

    def _delta(self, generation: Generation, delta: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": generation.index, "delta": delta, "logprobs": None}
        return self.chunk([choice | {"finish_reason": None, "matched_stop": None}], generation)

    def _meta_info(self, generation: Generation) -> dict[str, Any]:
        return {"meta_info": meta_info(generation, self.instance)} if self._with_meta_info else {}


def usage(generations: Sequence[Generation]) -> dict[str, Any]:
    """Token counts of a request; a prompt that is sampled several times counts once."""
    prompts = [generation for generation in generations if generation.sample == 0] or generations[:1]
    num_prompt = sum(generation.num_prompt_tokens for generation in prompts)
    num_output = sum(len(generation.token_ids) for generation in generations)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": sum(generation.cached_tokens for generation in prompts)},
        "reasoning_tokens": 0,
    }


async def _answer(request: Request, group: Group, form: _Completion | _Chat, headers: dict[str, str]) -> Response:
    if form.body.stream:
        return EventStream(group, form, form.instance, headers)
    await wait_for_all(group, request, form.instance)
    return json_response(form.answer(), headers=headers)


def _echoes(tasks: Sequence[Task]) -> list[str]:
    if any(not isinstance(task.prompt, str) for task in tasks):
        raise RequestError("echo needs prompts given as text")
    return [str(task.prompt) for task in tasks for _ in range(task.num_samples)]


async def _prompt(body: ChatBody, instance: Instance) -> str:
    if not body.messages:
        raise RequestError("messages is empty; give at least one message")
    messages = [_message(message, place) for place, message in enumerate(body.messages)]
    settings = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        settings.setdefault("reasoning_effort", body.reasoning_effort)

    def render() -> str:
        return instance.chat.render(messages, tools=body.tools, settings=settings)

    prompt: str = await instance.run_in_thread(render)
    return prompt


def _message(message: dict[str, Any], place: int) -> dict[str, Any]:
    """A message whose content is one text. Raises RequestError for any other kind of content."""
    role = message.get("role")
    if not isinstance(role, str):
        raise RequestError(f"messages[{place}].role must be a text such as user")
    if role.lower() not in _ROLES:
        raise RequestError(f"messages[{place}].role is {role[:40]!r}; known roles are {', '.join(_ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, place) for part in content)
    if content is not None and not isinstance(content, str):
        raise RequestError(f"messages[{place}].content must be a text or a list of text parts")
    return {**message, "role": role.lower(), "content": content or ""}


def _part(part: Any, place: int) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise RequestError(f"messages[{place}].content has a part that is not text; only text is supported")
    return text
