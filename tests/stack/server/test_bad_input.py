"""Whatever a stranger sends, the answer is one sentence with a 4xx, and the next request is served."""

import asyncio
import json
import socket
import threading

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LONG = list(range(10, 110)) * 41  # 4,100 tokens, more than the context of 4,096

REFUSED = {
    "no prompt": ({}, "either as text or as input_ids"),
    "two prompts": ({"text": "a", "input_ids": [1]}, "either as text or as input_ids"),
    "text of a wrong type": ({"text": 5}, "text: expected str or array or null, got int"),
    "ids of a wrong type": ({"input_ids": ["a"]}, "input_ids[0]: expected int or array, got str"),
    "a fraction as id": ({"input_ids": [1.5]}, "got float"),
    "a truth as id": ({"input_ids": [True]}, "got bool"),
    "no ids": ({"input_ids": []}, "input_ids is empty"),
    "no text": ({"text": ""}, "the prompt is empty"),
    "an empty prompt in a batch": ({"input_ids": [[1], []]}, "the prompt is empty"),
    "mixed ids": ({"input_ids": [1, [2]]}, "mixes kinds"),
    "a negative id": ({"input_ids": [5, -1]}, "token id -1 is outside the vocabulary; ids run from 0 to 1023"),
    "an id too large": ({"input_ids": [5, 1024]}, "token id 1024 is outside the vocabulary"),
    "an id beyond 64 bits": ({"input_ids": [2**70]}, "is outside the vocabulary"),
    "a prompt beyond the context": ({"input_ids": LONG}, "4100 tokens, more than the context of 4096"),
    "an answer beyond the context": ({"input_ids": [5], "sampling_params": {"max_new_tokens": 4096}}, "at most 4095"),
    "sampling of a wrong type": ({"text": "a", "sampling_params": 5}, "sampling_params: expected"),
    "too few samplings": ({"text": ["a", "b"], "sampling_params": [{}]}, "lists 1 entries for 2 prompts"),
    "too few rids": ({"text": ["a", "b"], "rid": ["x"]}, "rid lists 1 ids for 2 prompts"),
    "an endless rid": ({"text": "a", "rid": "x" * 300}, "1 to 256 characters"),
    "stream of a wrong type": ({"text": "a", "stream": "yes"}, "stream: expected bool or null, got str"),
    "logprobs": ({"text": "a", "return_logprob": True}, "return_logprob is not supported"),
    "sampling beside its place": ({"text": "a", "max_new_tokens": 5}, "max_new_tokens stands beside sampling_params"),
}

REFUSED_SAMPLING = {
    "a negative length": ({"max_new_tokens": -1}, "max_new_tokens must be 0 or more"),
    "a length beyond 64 bits": ({"max_new_tokens": 10**30}, "exceed the context"),
    "a length that is text": ({"max_new_tokens": "9"}, "sampling_params.max_new_tokens: expected int or null, got str"),
    "a minimum above the length": ({"max_new_tokens": 3, "min_new_tokens": 4}, "min_new_tokens must lie between"),
    "a negative minimum": ({"min_new_tokens": -4}, "min_new_tokens must lie between"),
    "a negative temperature": ({"temperature": -0.1}, "temperature must lie between"),
    "an endless temperature": ({"temperature": 1e300}, "temperature must lie between"),
    "top_p of 0": ({"top_p": 0.0}, "top_p must be above 0"),
    "top_k of 0": ({"top_k": 0}, "top_k must be -1"),
    "min_p above 1": ({"min_p": 1.5}, "min_p must lie"),
    "an empty stop string": ({"stop": ""}, "non-empty"),
    "an endless stop string": ({"stop": "x" * 2000}, "at most 1024 characters"),
    "many stop strings": ({"stop": ["a"] * 65}, "at most 64"),
    "a stop token outside the vocabulary": ({"stop_token_ids": [2000]}, "stop_token_ids must be below 1024"),
    "no samples": ({"n": 0}, "n must lie between"),
    "a crowd of samples": ({"n": 10**6}, "n must lie between"),
    "a negative seed": ({"sampling_seed": -1}, "seed must lie between"),
    "a seed beyond 64 bits": ({"sampling_seed": 2**80}, "seed must lie between"),
    "a penalty": ({"frequency_penalty": 0.5}, "frequency_penalty is not supported"),
    "a grammar": ({"regex": "a+"}, "regex is not supported"),
    "a stop pattern": ({"stop_regex": "a+"}, "stop_regex is not supported"),
    "beams": ({"beam_width": 4}, "beam_width is not supported"),
    "a mistyped name": ({"temprature": 0.0}, "sampling_params.temprature is unknown, did you mean temperature"),
    "another protocol's name": ({"max_tokens": 5}, "max_tokens is unknown, did you mean max_new_tokens"),
}
ALL_REFUSED = REFUSED | {
    name: ({"text": "a", "sampling_params": sampling}, sentence)
    for name, (sampling, sentence) in REFUSED_SAMPLING.items()
}

RUBBISH_BODIES = {
    "not JSON": b"hello",
    "half a body": b'{"text": "a"',
    "bytes that are not UTF-8": b"\xff\xfe\x00",
    "a text that is not UTF-8": b'{"text": "\xff"}',
    "a list": b"[1, 2]",
    "a lone surrogate": b'{"text": "\\ud800 and more"}',
    "a nesting bomb": b'{"text": ' + b"[" * 200_000,
    "a nesting bomb in an unknown field": b'{"extra": ' + b"[" * 200_000 + b"]" * 200_000 + b', "text": "a"}',
    "NaN": b'{"text": "a", "sampling_params": {"temperature": NaN}}',
    "a number without end": b'{"text": "a", "sampling_params": {"temperature": 1e999}}',
}


def sentence_of(response):
    message = response.json()["error"]["message"]
    assert message
    assert "\n" not in message
    assert "Traceback" not in message
    return message


@pytest.mark.parametrize("name", ALL_REFUSED)
def test_nonsense_gets_a_400_and_one_sentence(client, name):
    body, sentence = ALL_REFUSED[name]
    answer = client.post("/generate", json=body)
    assert answer.status_code == 400, answer.text
    assert sentence in sentence_of(answer)


@pytest.mark.parametrize("name", RUBBISH_BODIES)
@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_rubbish_bodies_get_a_400(client, server, path, name):
    answer = client.post(path, content=RUBBISH_BODIES[name])
    assert answer.status_code == 400, answer.text
    sentence_of(answer)
    assert server.is_healthy()


def test_wrong_paths_and_methods_are_sentences_too(client):
    for method, path, status in (("GET", "/nothing", 404), ("GET", "/generate", 405), ("DELETE", "/health", 405)):
        answer = client.request(method, path)
        assert answer.status_code == status
        assert path in sentence_of(answer)


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_of_100_megabytes_is_refused(client, server, announced):
    blob = b" " * 10**6
    content = b"".join([blob] * 100) if announced else (blob for _ in range(100))
    answer = client.post("/generate", content=content)
    assert answer.status_code == 413
    assert "server.max_body_bytes" in sentence_of(answer)
    assert server.is_healthy()


def test_a_large_body_within_the_limit_is_judged_by_its_content(client):
    answer = client.post("/generate", json={"input_ids": LONG * 500})
    assert answer.status_code == 400
    assert "more than the context" in sentence_of(answer)
    answer = client.post("/generate", json={"text": "Ada sold apples. " * 200_000})
    assert answer.status_code == 400
    assert "more than the context" in sentence_of(answer)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    "text input_ids prompt messages sampling_params stream rid n stop max_tokens temperature top_k seed "
    "stream_options echo logprobs bootstrap_room return_logprob chat_template_kwargs tools".split()
)
SAMPLING = st.dictionaries(
    st.sampled_from("max_new_tokens min_new_tokens temperature top_p top_k stop stop_token_ids n seed".split()),
    st.integers(-3, 6)
    | st.floats(-2, 2)
    | st.text(max_size=3)
    | st.none()
    | st.lists(st.integers(-2, 1030), max_size=3),
    max_size=4,
)
BODIES = st.dictionaries(FIELDS, JSON | SAMPLING, max_size=6) | st.fixed_dictionaries(
    {"text": st.text(max_size=20), "sampling_params": SAMPLING | JSON, "prompt": JSON | st.text(max_size=9)}
)
PATHS = st.sampled_from(["/generate", "/v1/completions", "/v1/chat/completions", "/abort_request", "/start_profile"])


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=PATHS, body=BODIES | JSON)
def test_any_json_is_answered_and_never_a_server_error(client, path, body):
    content = json.dumps(body, ensure_ascii=True).encode()
    answer = client.post(path, content=content, timeout=30)
    assert answer.status_code in (200, 400), (answer.status_code, answer.text)
    if answer.status_code == 400:
        sentence_of(answer)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60))
def test_any_bytes_as_a_body_are_answered(client, content):
    assert client.post("/generate", content=content).status_code == 400


def raw(port, data, timeout_s=2.0):
    """What comes back for raw bytes, until the peer closes or the time is over."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        answer = b""
        try:
            connection.sendall(data)
            while chunk := connection.recv(65536):
                answer += chunk
        except (TimeoutError, ConnectionError):
            pass
        return answer


@pytest.mark.parametrize(
    "data",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00" * 4096,
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /generate HTTP/1.1\r\ncontent-length: banana\r\n\r\n",
        b"POST /generate HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 2_000_000,
    ],
    ids=["gRPC greeting", "TLS", "zeros", "no path", "no version", "no length", "minus", "upgrade", "headers"],
)
def test_rubbish_on_the_port_is_turned_away_without_a_trace(server, data):
    before = len(server.log)
    answer = raw(server.port, data)
    assert b" 5" not in answer.split(b"\r\n", 1)[0]
    assert server.is_healthy()
    assert server.log[before:] == []


def test_a_greeting_in_http2_is_closed_at_once(server):
    assert raw(server.port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == b""


def test_500_connections_at_once_are_all_served(server):
    body = {"input_ids": [906, 10], "sampling_params": {"max_new_tokens": 8}}

    async def one(session):
        async with session.post(f"{server.url}/generate", json=body) as answer:
            return answer.status, len((await answer.json())["output_ids"])

    async def flood():
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            return set(await asyncio.gather(*(one(session) for _ in range(500))))

    assert asyncio.run(flood()) == {(200, 8)}


def test_connections_that_say_nothing_do_not_block_others(server):
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
    try:
        for connection in idle[:100]:
            connection.sendall(b"POST /generate HTTP/1.1\r\nconte")
        assert server.is_healthy()
    finally:
        for connection in idle:
            connection.close()


def test_a_client_that_does_not_read_blocks_nobody(server, client):
    body = json.dumps({"input_ids": [410, 11], "stream": True, "sampling_params": {"max_new_tokens": 3000}}).encode()
    head = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", server.port)) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(head + body)
        done = threading.Event()

        def others():
            for _ in range(20):
                client.post("/generate", json={"input_ids": [12], "sampling_params": {"max_new_tokens": 4}})
            done.set()

        worker = threading.Thread(target=others)
        worker.start()
        worker.join(15)
        assert done.is_set()
    assert server.is_healthy()
