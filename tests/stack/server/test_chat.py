import json

import pytest

from stack.core.errors import ConfigError, RequestError
from stack.server.chat import ChatTemplate

TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


def write(folder, **config):
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return ChatTemplate.from_folder(folder)


def test_a_folder_without_template_gets_plain_roles(tmp_path):
    assert ChatTemplate.from_folder(tmp_path).render(TALK) == "user: hi\nassistant: ho\nassistant:"


def test_the_checkpoints_template_and_tokens_are_used(tmp_path):
    chat = write(
        tmp_path,
        eos_token={"content": "<|end|>"},
        chat_template="{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}{{ add_generation_prompt }}",
    )
    assert chat.render(TALK) == "hi<|end|>ho<|end|>True"


def test_a_template_file_goes_first(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert write(tmp_path, chat_template="from the config").render(TALK) == "from the file"


def test_named_templates_use_the_default(tmp_path):
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    assert write(tmp_path, chat_template=named).render(TALK) == "yes"


def test_settings_and_tools_reach_the_template(tmp_path):
    chat = write(tmp_path, chat_template="{{ enable_thinking }} {{ tools | tojson }}")
    assert chat.render(TALK, tools=[{"a": "é"}], settings={"enable_thinking": False}) == 'False [{"a": "é"}]'


def test_a_templates_complaint_is_the_clients_fault(tmp_path):
    with pytest.raises(RequestError, match="roles must alternate"):
        write(tmp_path, chat_template="{{ raise_exception('roles must alternate') }}").render(TALK)
    with pytest.raises(RequestError, match="refuses"):
        write(tmp_path, chat_template="{{ messages[7]['content'] + 1 }}").render(TALK)


def test_a_template_cannot_leave_its_sandbox(tmp_path):
    chat = write(tmp_path, chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(RequestError, match="unsafe"):
        chat.render(TALK)


def test_a_template_that_does_not_compile_is_a_mistake_of_the_folder(tmp_path):
    with pytest.raises(ConfigError, match="compile"):
        write(tmp_path, chat_template="{% for %}")
