"""Prefill and decode instances, seen from a router."""

import json
import time

import httpx
import pytest

from tests.support.serving import serving

MEETING = {"bootstrap_host": "127.0.0.1", "bootstrap_port": 1234, "bootstrap_room": 2**62}
ASK = {"input_ids": [10, 11], "sampling_params": {"max_new_tokens": 4}}


@pytest.fixture(scope="module", params=["prefill", "decode"])
def half(request, tmp_path_factory):
    rules = {"900": {"delay_s": 0.4}, "901": {"delay_s": 0.1, "refuse_status": 500, "refuse_error": "no peer"}}
    with serving(tmp_path_factory.mktemp("half"), {"rules": rules}, {"role": request.param}) as running:
        running.role = request.param
        yield running


def test_the_meeting_point_reaches_the_worker(half):
    assert httpx.post(f"{half.url}/generate", json=ASK | MEETING).status_code == 200
    heard = [m for m in half.heard() if m["type"] == "generate"][-1]
    assert heard["bootstrap"] == {"host": "127.0.0.1", "port": 1234, "room": 2**62}


def test_every_prompt_of_a_batch_has_its_own_room(half):
    meeting = {"bootstrap_host": ["a", "b"], "bootstrap_port": [1, 2], "bootstrap_room": [5, 6]}
    assert httpx.post(f"{half.url}/generate", json={"input_ids": [[1], [2]]} | meeting).status_code == 200
    heard = [m["bootstrap"] for m in half.heard() if m["type"] == "generate"][-2:]
    assert heard == [{"host": "a", "port": 1, "room": 5}, {"host": "b", "port": 2, "room": 6}]


@pytest.mark.parametrize(
    ("given", "kept"), [("[::1]", "::1"), ("fe80::1%eth0", "fe80::1%eth0"), ("p_0.pod-1.svc.", "p_0.pod-1.svc.")]
)
def test_names_and_addresses_reach_the_worker_ipv6_without_brackets(half, given, kept):
    assert httpx.post(f"{half.url}/generate", json=ASK | MEETING | {"bootstrap_host": given}).status_code == 200
    assert [m for m in half.heard() if m["type"] == "generate"][-1]["bootstrap"]["host"] == kept


def test_openai_bodies_carry_the_meeting_point(half):
    asked = {"completions": {"prompt": "a"}, "chat/completions": {"messages": [{"role": "user", "content": "a"}]}}
    for path, body in asked.items():
        assert httpx.post(f"{half.url}/v1/{path}", json=body | MEETING | {"max_tokens": 2}).status_code == 200
        assert [m for m in half.heard() if m["type"] == "generate"][-1]["bootstrap"]["room"] == 2**62


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"bootstrap_host": None}, "send requests through a router"),
        ({"bootstrap_room": None}, "send requests through a router"),
        ({"bootstrap_port": None}, "--prefill http://HOST:PORT PORT"),
        ({"bootstrap_host": "127.0.0.1/x?"}, "without scheme, user, port or path, not '127.0.0.1/x?'"),
        ({"bootstrap_host": "a b"}, "bootstrap_host must be a host name or an IP address"),
        ({"bootstrap_host": "user@host"}, "bootstrap_host must be a host name or an IP address"),
        ({"bootstrap_host": "host:80"}, "bootstrap_host must be a host name or an IP address"),
        ({"bootstrap_host": "[::1"}, "bootstrap_host must be a host name or an IP address"),
        ({"bootstrap_host": "::1%25/x"}, "bootstrap_host must be a host name or an IP address"),
        ({"bootstrap_host": "a" * 10_000}, "bootstrap_host must be a host name or an IP address"),
        ({"bootstrap_port": 70000}, "between 1 and 65535"),
        ({"bootstrap_room": -1}, "between 0 and"),
        ({"bootstrap_room": 2**64}, "between 0 and"),
        ({"bootstrap_room": [1, 2]}, "lists 2 values for 1 prompts"),
        ({"sampling_params": {"n": 2}}, "n must be 1"),
    ],
)
def test_a_meeting_point_that_cannot_be_gets_a_400(half, change, sentence):
    answer = httpx.post(f"{half.url}/generate", json=ASK | MEETING | change)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]["message"]


def test_the_other_half_hears_of_a_request_that_does_not_fit_here(half):
    body = {"text": "a", "sampling_params": {"max_new_tokens": 10**7}, "bootstrap_room": 77}
    too_long = httpx.post(f"{half.url}/generate", json=MEETING | body)
    heard = half.hears("refuse")
    assert heard["bootstrap"]["room"] == 77 and heard["status"] == too_long.status_code == 400
    assert heard["reason"] == too_long.json()["error"]["message"]


def test_prefill_answers_with_its_one_token_at_the_end_decode_with_headers_at_once(half):
    body = ASK | MEETING | {"stream": True, "input_ids": [900, 10]}
    started_s = time.monotonic()
    with httpx.stream("POST", f"{half.url}/generate", json=body) as answer:
        headers_s = time.monotonic() - started_s
        lines = [line for line in answer.iter_lines() if line]
    last = json.loads(lines[-2].removeprefix("data: "))
    assert lines[-1] == "data: [DONE]"
    if half.role == "prefill":
        assert headers_s > 0.4
        assert last["meta_info"]["completion_tokens"] == 1
    else:
        assert headers_s < 0.35
        assert last["meta_info"]["completion_tokens"] == 4


def test_a_prefill_failure_is_a_status_even_when_streaming(half):
    body = ASK | MEETING | {"stream": True, "input_ids": [901, 10]}
    assert httpx.post(f"{half.url}/generate", json=body).status_code == 500


def test_decode_instances_find_the_prefill_worker(half):
    answer = httpx.get(f"{half.url}/disagg/endpoint")
    if half.role == "prefill":
        assert answer.json() == {"address": "tcp://127.0.0.1:1", "layout_hash": "scripted", "instance": "scripted-1"}
    else:
        assert answer.status_code == 404


def test_health_generate_asks_the_worker_alone(half):
    time.sleep(0.01)
    assert httpx.get(f"{half.url}/health_generate").status_code == 200


def test_the_role_is_told(half):
    assert httpx.get(f"{half.url}/get_model_info").json()["disaggregation_mode"] == half.role


def test_synthetic_admission_needs_no_meeting_point(tmp_path):
    with serving(tmp_path, {}, {"role": "decode", "synthetic_admission": True}) as running:
        assert httpx.post(f"{running.url}/generate", json=ASK).json()["output_ids"] == [10, 11, 10, 11]
