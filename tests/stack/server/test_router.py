"""The real router in both of its forms, in front of a prefill and a decode instance over scripted workers."""

import json
import time

import httpx
import pytest

from tests.support.routing import routing
from tests.support.serving import serving

RULES = {
    "900": {"step_s": 0.02},
    "901": {"refuse_status": 400, "refuse_error": "refused on purpose"},
    "902": {"step_s": 0.2},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    script = {"rules": RULES}
    with (
        serving(tmp_path_factory.mktemp("prefill"), script, {"role": "prefill"}) as prefill,
        serving(tmp_path_factory.mktemp("decode"), script, {"role": "decode"}) as decode,
    ):
        yield prefill, decode


@pytest.fixture(scope="module", params=["mini-lb", "rust"])
def router(request, pair):
    with routing(*pair, form=request.param) as url, httpx.Client(base_url=url, timeout=30) as client:
        client.form = request.param
        yield client


def heard(instance, kind="generate"):
    return [message for message in instance.heard() if message["type"] == kind]


def test_a_request_meets_in_one_room_on_both_sides(router, pair):
    prefill, decode = pair
    before = len(heard(prefill)), len(heard(decode))
    body = {"input_ids": [10, 11, 12], "sampling_params": {"max_new_tokens": 5, "temperature": 0}}
    answer = router.post("/generate", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output_ids"] == [10, 11, 12, 10, 11]
    (p,), (d,) = heard(prefill)[before[0] :], heard(decode)[before[1] :]
    assert p["bootstrap"] == d["bootstrap"]
    assert (p["bootstrap"]["host"], p["bootstrap"]["port"]) == ("127.0.0.1", prefill.port)
    assert p["token_ids"] == d["token_ids"]


def test_a_stream_comes_through_step_by_step(router):
    body = {"input_ids": [900, 11], "stream": True, "sampling_params": {"max_new_tokens": 5}}
    with router.stream("POST", "/generate", json=body) as answer:
        lines = [line for line in answer.iter_lines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert lines[-1] == "data: [DONE]"
    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert counts == sorted({*counts, 5})
    assert len(counts) > 2, "the steps came in one piece"


def test_a_batch_has_a_room_for_every_prompt(router, pair):
    before = len(heard(pair[1]))
    body = {"input_ids": [[20], [21], [22]], "sampling_params": {"max_new_tokens": 2}}
    assert [a["output_ids"] for a in router.post("/generate", json=body).json()] == [[20] * 2, [21] * 2, [22] * 2]
    rooms = [m["bootstrap"]["room"] for m in heard(pair[1])[before:]]
    assert len(set(rooms)) == 3
    assert set(rooms) <= {m["bootstrap"]["room"] for m in heard(pair[0])}


@pytest.mark.parametrize("stream", [False, True])
def test_openai_requests_come_through(router, stream):
    body = {"model": "llm", "prompt": "Ada sold", "max_tokens": 3, "temperature": 0, "stream": stream}
    answer = router.post("/v1/completions", json=body)
    assert answer.status_code == 200
    assert ("[DONE]" in answer.text) == stream
    body = {"model": "llm", "messages": [{"role": "user", "content": "Ada sold"}], "max_tokens": 3, "stream": stream}
    answer = router.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert "Ada" in answer.text


def test_a_bad_request_is_not_retried(router, pair):
    before = len(heard(pair[0]))
    answer = router.post("/generate", json={"input_ids": [901], "sampling_params": {"max_new_tokens": 2}})
    assert answer.status_code == 400
    assert len(heard(pair[0])) == before + 1


def test_a_client_that_leaves_frees_decode_at_once(router, pair):
    before = len(heard(pair[1], "abort"))
    body = {"input_ids": [902, 11], "stream": True, "sampling_params": {"max_new_tokens": 400}}
    with router.stream("POST", "/generate", json=body) as answer:
        next(answer.iter_lines())
    left_s = time.monotonic()
    while len(heard(pair[1], "abort")) == before:
        assert time.monotonic() - left_s < 2
        time.sleep(0.005)


def test_flushing_reaches_both(router, pair):
    before = [len(heard(instance, "flush")) for instance in pair]
    assert router.post("/flush_cache").status_code == 200
    assert [len(heard(instance, "flush")) for instance in pair] == [n + 1 for n in before]


def test_the_model_is_known_through_the_router(router):
    assert router.get("/v1/models").json()["data"][0]["id"] == "llm"
    assert router.get("/get_model_info").status_code == 200 if router.form == "rust" else True


def test_probing_leaves_no_noise_in_the_workers_logs(router, pair):
    for instance in pair:
        assert not [line for line in instance.log if not line.startswith("np1d: ")]
