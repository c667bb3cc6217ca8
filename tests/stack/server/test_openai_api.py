import json
import re

import msgspec
import openai
import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from stack.models.tiny_tokenizer import build_tokenizer
from stack.server.bodies import ChatBody, CompletionBody, parse

TOKENIZER = build_tokenizer()


@pytest.fixture
def official(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=20) as made:
        yield made


def lines_of(client, path, body):
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_the_official_client_lists_the_model(official):
    assert [model.id for model in official.models.list()] == ["llm"]


def test_the_official_client_completes(official):
    answer = official.completions.create(model="llm", prompt="Ada sold", max_tokens=5, temperature=0)
    assert answer.choices[0].text == "Ada soldAda soldAda"
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (2, 5, 7)


def test_the_official_client_streams_a_completion(official):
    stream = official.completions.create(
        model="llm", prompt="Ada sold", max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == "Ada soldAda soldAda"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5


def test_the_official_client_chats(official):
    talk = [{"role": "user", "content": [{"type": "text", "text": "Ada"}, {"type": "text", "text": " sold"}]}]
    answer = official.chat.completions.create(model="llm", messages=talk, max_completion_tokens=3, temperature=0)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "Ada sold"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 3)


def test_the_official_client_streams_a_chat(official):
    talk = [{"role": "user", "content": "Ada sold"}]
    chunks = list(official.chat.completions.create(model="llm", messages=talk, max_tokens=3, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Ada sold"
    assert chunks[-1].choices[0].finish_reason == "length"


def test_the_official_client_sees_a_bad_request_as_one(official):
    with pytest.raises(openai.BadRequestError, match="temperature must lie between"):
        official.completions.create(model="llm", prompt="a", temperature=-1)
    with pytest.raises(openai.BadRequestError, match="logprobs are not supported"):
        official.completions.create(model="llm", prompt="a", logprobs=2)
    with pytest.raises(openai.BadRequestError, match="response_format"):
        official.chat.completions.create(
            model="llm", messages=[{"role": "user", "content": "a"}], response_format={"type": "json_object"}
        )


def test_a_chat_without_a_limit_may_fill_the_context(client, server):
    talk = [{"role": "user", "content": "zz"}]
    client.post("/v1/chat/completions", json={"messages": talk, "ignore_eos": True, "rid": "full", "stop": "zzz"})
    (heard,) = [m for m in server.heard() if m["type"] == "generate" and m["rid"].startswith("full.")]
    assert heard["sampling"]["max_new_tokens"] == 4096 - len(heard["token_ids"])


def test_completions_take_batches_and_samples_and_echo(client):
    body = {"prompt": ["ab", "cd"], "max_tokens": 2, "n": 2, "echo": True}
    answer = client.post("/v1/completions", json=body).json()
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in answer["choices"]] == ["abab", "abab", "cdcd", "cdcd"]
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["usage"]["completion_tokens"] == 8


def test_completions_take_token_ids(client):
    answer = client.post("/v1/completions", json={"prompt": [[70], [71]], "max_tokens": 2}).json()
    assert [c["text"] for c in answer["choices"]] == [TOKENIZER.decode([70, 70]), TOKENIZER.decode([71, 71])]
    answer = client.post("/v1/completions", json={"prompt": [70, 71], "max_tokens": 2}).json()
    assert answer["choices"][0]["text"] == TOKENIZER.decode([70, 71])


def test_a_stop_string_is_named_and_cut(client):
    body = {"prompt": "Ada sold", "max_tokens": 20, "stop": [" so"], "min_tokens": 0}
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["matched_stop"]) == ("Ada", "stop", " so")


def test_cache_details_come_with_one_empty_choice_in_completions(client):
    body = {"prompt": [905, 1, 2, 3, 4, 5, 6, 7], "max_tokens": 2, "return_cached_tokens_details": True}
    got = lines_of(client, "/v1/completions", body)
    assert all(event["choices"] for event in got), "a known client reads choices[0] of every event"
    assert got[-1]["sglext"] == {"cached_tokens_details": {"device": 5, "host": 0}}
    assert client.post("/v1/completions", json=body).json()["sglext"] == got[-1]["sglext"]


def test_running_usage_is_sent_on_request(client):
    body = {"prompt": "Ada", "max_tokens": 3, "stream_options": {"continuous_usage_stats": True}}
    counts = [e["usage"]["completion_tokens"] for e in lines_of(client, "/v1/completions", body)]
    assert counts == sorted({*counts, 3})


def test_chat_gives_meta_info_on_request(client):
    body = {"messages": [{"role": "user", "content": "Ada"}], "max_tokens": 2, "return_meta_info": True}
    meta = client.post("/v1/chat/completions", json=body).json()["choices"][0]["meta_info"]
    assert meta["completion_tokens"] == 2
    assert lines_of(client, "/v1/chat/completions", body)[-1]["choices"][0]["meta_info"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"messages": []}, "messages is empty"),
        ({}, "messages is empty"),
        ({"messages": [{"content": "a"}]}, r"messages\[0\]\.role"),
        ({"messages": [{"role": "user", "content": 5}]}, r"messages\[0\]\.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text is supported"),
        ({"messages": "hello"}, "messages: expected array or null, got str"),
        ({"messages": [{"role": "usr", "content": "a"}]}, r"messages\[0\]\.role is 'usr'; known roles are system,"),
    ],
)
def test_odd_messages_get_one_sentence(client, body, sentence):
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert re.search(sentence, answer.json()["error"]["message"])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_mistyped_sampling_parameter_is_named_beside_the_known_ones(client, path):
    body = {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    answer = client.post(path, json=body | {"temprature": 0})
    assert answer.status_code == 400
    sentence = answer.json()["error"]["message"]
    assert sentence.startswith("temprature is unknown, did you mean temperature? known sampling parameters are ")
    assert "max_tokens" in sentence


@pytest.mark.parametrize(("params", "body"), [(completion_params, CompletionBody), (chat_params, ChatBody)])
def test_every_field_that_the_official_client_can_send_is_known(params, body):
    fields = {*params.CompletionCreateParamsBase.__annotations__, "stream"}
    assert fields <= set(body.__struct_fields__)
    parse(body, msgspec.json.encode(dict.fromkeys(fields)))


def test_both_names_of_the_limit_are_understood(client):
    answer = client.post("/v1/completions", json={"prompt": "Ada", "max_completion_tokens": 3, "ignore_eos": True})
    assert answer.json()["usage"]["completion_tokens"] == 3


def test_a_role_is_understood_in_any_case(client):
    talk = [{"role": "User", "content": "Ada"}]
    assert client.post("/v1/chat/completions", json={"messages": talk, "max_tokens": 1}).is_success
