"""Chat messages to one prompt, by the checkpoint's own template.

The template is Jinja from `chat_template.jinja` or `tokenizer_config.json`, run in a sandbox. A checkpoint without one
gets one line a message, `role: content`.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from stack.core.errors import ConfigError, RequestError

_PLAIN = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


class ChatTemplate:
    """A compiled template and the special tokens it may name."""

    def __init__(self, source: str | None, variables: Mapping[str, Any] | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source if source is not None else _PLAIN)
        except TemplateError as error:
            raise ConfigError(f"the chat template does not compile: {error}") from None
        self._variables = dict(variables or {})

    @classmethod
    def from_folder(cls, folder: Path) -> "ChatTemplate":
        """Read the template of a checkpoint folder. Raises ConfigError for one that does not compile."""
        file = folder / "tokenizer_config.json"
        try:
            config = json.loads(file.read_text()) if file.exists() else {}
        except ValueError as error:
            raise ConfigError(f"{file} is not valid JSON: {error}") from None
        own_file = folder / "chat_template.jinja"
        source = own_file.read_text() if own_file.exists() else _named_default(config.get("chat_template"))
        return cls(source, {name: _token(value) for name, value in config.items() if name.endswith("_token")})

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt, with the turn of the assistant opened. Raises RequestError with the template's own complaint."""
        names = {"add_generation_prompt": True, **self._variables, **(settings or {})}
        try:
            return self._template.render({**names, "messages": list(messages), "tools": tools or None})
        except RequestError:
            raise
        except Exception as error:  # whatever a template does with odd messages is the request's fault
            raise RequestError(f"the chat template refuses these messages: {error}") from None


def _named_default(source: Any) -> str | None:
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    return source if isinstance(source, str) else None


def _token(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else value


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> None:
    raise RequestError(f"the chat template refuses these messages: {message}")
