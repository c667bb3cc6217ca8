import itertools
import json
import time

import httpx
import pytest

from stack.models.tiny_tokenizer import build_tokenizer

TOKENIZER = build_tokenizer()


def generate(client, prompt, **params):
    kind = "text" if isinstance(prompt, str) else "input_ids"
    return client.post("/generate", json={kind: prompt, "sampling_params": {"temperature": 0, **params}})


def events(client, body, path="/generate"):
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream"
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_text_in_gives_text_tokens_and_counts_out(client):
    answer = generate(client, "Ada sold 12 apples", max_new_tokens=6).json()
    ids = TOKENIZER.encode("Ada sold 12 apples").ids
    assert answer["output_ids"] == (ids * 2)[:6]
    assert answer["text"] == TOKENIZER.decode(answer["output_ids"])
    meta = answer["meta_info"]
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (len(ids), 6, 0)
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert meta["e2e_latency"] > 0
    assert meta["cached_tokens_details"] == {"device": 0, "host": 0}
    assert "spec_verify_ct" not in meta


def test_token_ids_in_are_taken_as_they_are(client):
    assert generate(client, [10, 11, 12], max_new_tokens=4).json()["output_ids"] == [10, 11, 12, 10]


def test_put_is_post(client):
    assert client.put("/generate", json={"input_ids": [10], "sampling_params": {"max_new_tokens": 1}}).is_success


def test_batches_come_back_in_order(client):
    answers = generate(client, [[20], [900, 21], [22]], max_new_tokens=2).json()
    assert [answer["output_ids"] for answer in answers] == [[20, 20], [900, 21], [22, 22]]
    answers = generate(client, ["one"], max_new_tokens=2).json()
    assert len(answers) == 1


def test_a_batch_takes_text_lists_and_one_sampling_each(client):
    body = {"text": ["aa", "bb"], "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2}], "rid": ["x", "y"]}
    answers = client.post("/generate", json=body).json()
    assert [a["meta_info"]["completion_tokens"] for a in answers] == [1, 2]
    assert [a["meta_info"]["id"] for a in answers] == ["x", "y"]


def test_n_samples_a_prompt_many_times(client, server):
    answers = generate(client, [30], max_new_tokens=1, n=3, sampling_seed=7).json()
    assert len(answers) == 3
    seeds = [m["sampling"]["seed"] for m in server.heard() if m["type"] == "generate" and m["token_ids"] == [30]]
    assert seeds == [7, 8, 9]


def test_requests_without_a_seed_draw_differently(client, server):
    for _ in range(2):
        generate(client, [31], max_new_tokens=1)
    seeds = [m["sampling"]["seed"] for m in server.heard() if m["type"] == "generate" and m["token_ids"] == [31]]
    assert len(set(seeds)) == 2


def test_defaults_are_those_of_the_protocol_and_null_is_default(client, server):
    body = {"input_ids": [32], "model": None, "stream": None, "rid": None, "bootstrap_room": None, "unknown": {"a": 1}}
    names = ("max_new_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "n", "sampling_seed")
    client.post("/generate", json={**body, "sampling_params": dict.fromkeys(names)}).raise_for_status()
    (sampling,) = [m["sampling"] for m in server.heard() if m["type"] == "generate" and m["token_ids"] == [32]]
    got = {name: sampling[name] for name in ("max_new_tokens", "temperature", "top_p", "top_k", "min_p", "stop")}
    assert got == {"max_new_tokens": 128, "temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "stop": []}


def test_floats_in_float32_precision_are_taken(client):
    assert generate(client, [10], max_new_tokens=1, temperature=0.699999988079071, top_p=0.8999999761581421).is_success


def test_no_tokens_asked_is_legal(client):
    answer = generate(client, "Ada", max_new_tokens=0).json()
    assert (answer["text"], answer["output_ids"], answer["meta_info"]["completion_tokens"]) == ("", [], 0)
    assert events(client, {"text": "Ada", "sampling_params": {"max_new_tokens": 0}})[-1]["text"] == ""


def test_a_stream_carries_the_whole_text_so_far(client):
    got = events(client, {"text": "Ada sold 12 apples", "sampling_params": {"max_new_tokens": 6, "temperature": 0}})
    whole = generate(client, "Ada sold 12 apples", max_new_tokens=6).json()
    for before, after in itertools.pairwise(got):
        assert after["text"].startswith(before["text"])
        assert after["meta_info"]["completion_tokens"] > before["meta_info"]["completion_tokens"]
    assert all(event["meta_info"]["finish_reason"] is None for event in got[:-1])
    assert len(got) > 1
    assert got[-1]["text"] == whole["text"]
    assert got[-1]["output_ids"] == whole["output_ids"]
    assert got[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 6}


def test_a_streamed_batch_names_the_index_of_each_event(client):
    body = {"input_ids": [[40], [41]], "sampling_params": {"max_new_tokens": 3}}
    last = {event["index"]: event for event in events(client, body) if event["meta_info"]["finish_reason"]}
    assert last[0]["output_ids"] == [40] * 3
    assert last[1]["output_ids"] == [41] * 3


def test_an_end_token_stops_and_is_not_in_the_text(client):
    answer = generate(client, [*TOKENIZER.encode("Ada").ids, 1, 50], max_new_tokens=9).json()
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": 1}
    assert answer["output_ids"] == [410, 1]
    assert (answer["text"], answer["meta_info"]["completion_tokens"]) == ("Ada", 2)


def test_ignore_eos_runs_on_and_special_tokens_stay_out_of_the_text(client):
    prompt = [*TOKENIZER.encode("Ada").ids, 1]
    answer = generate(client, prompt, max_new_tokens=4, ignore_eos=True).json()
    assert answer["text"] == "AdaAda"
    answer = generate(client, prompt, max_new_tokens=4, ignore_eos=True, skip_special_tokens=False).json()
    assert answer["text"] == "Ada<|end|>Ada<|end|>"


def test_stop_token_ids_stop_and_are_cut(client):
    answer = generate(client, "Ada sold", max_new_tokens=9, stop_token_ids=[550]).json()
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": 550}
    assert answer["text"] == "Ada"


@pytest.mark.parametrize("first", [410, 904], ids=["one token a step", "four tokens a step"])
def test_a_stop_string_ends_the_request_here_and_in_the_worker(client, server, first):
    prompt = [first, *TOKENIZER.encode("x Question: y and more").ids]
    answer = generate(client, prompt, max_new_tokens=1000, stop=["Question", "zzz"]).json()
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "Question"}
    want = TOKENIZER.decode(prompt).partition("Question")[0]
    assert answer["text"] == want
    used = answer["output_ids"]
    assert "Question" in TOKENIZER.decode(used)
    assert "Question" not in TOKENIZER.decode(used[:-1])
    assert answer["meta_info"]["completion_tokens"] == len(used)
    rid = answer["meta_info"]["id"]
    deadline = time.monotonic() + 2
    while not any(m["type"] == "abort" and m["rid"].startswith(rid) for m in server.heard()):
        assert time.monotonic() < deadline, "the worker was not told"
        time.sleep(0.01)


def test_a_streamed_stop_string_never_shows(client):
    prompt = TOKENIZER.encode("x Question: y").ids
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 50, "stop": "Question"}}
    assert all("Q" not in event["text"] for event in events(client, body))


def test_the_minimum_holds_stop_strings_off(client):
    ids = TOKENIZER.encode("x.y").ids
    answer = generate(client, ids, max_new_tokens=20, min_new_tokens=4, stop="y").json()
    assert answer["text"] == "x.yx."


def test_speculation_is_counted_once_a_verify(client):
    meta = generate(client, [904, 5, 6], max_new_tokens=8).json()["meta_info"]
    assert (meta["spec_verify_ct"], meta["spec_accept_length"], meta["spec_num_correct_drafts"]) == (2, 4.0, 6)


def test_cached_tokens_are_passed_on(client):
    meta = generate(client, [905, 1, 2, 3, 4, 5, 6], max_new_tokens=1).json()["meta_info"]
    assert (meta["cached_tokens"], meta["cached_tokens_details"]) == (5, {"device": 5, "host": 0})


def test_a_refusal_of_the_worker_is_a_status_streamed_or_not(client):
    for stream in (False, True):
        full = client.post("/generate", json={"input_ids": [901], "stream": stream})
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        assert full.json()["error"]["message"] == "the queue is full; try again in a moment"
        assert client.post("/generate", json={"input_ids": [902], "stream": stream}).status_code == 400


def test_a_failure_before_the_answer_is_a_500(client):
    assert generate(client, [903], max_new_tokens=9).status_code == 500


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_a_failure_in_the_middle_breaks_the_stream(client, server, path):
    body = {"input_ids" if path == "/generate" else "prompt": [903, 10, 11]}
    lines = []
    with pytest.raises(httpx.RemoteProtocolError), client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        lines.extend(answer.iter_lines())
    assert not any("[DONE]" in line for line in lines)
    assert server.is_healthy()


def test_ids_are_the_clients_or_made(client):
    assert generate(client, [10], max_new_tokens=1).json()["meta_info"]["id"]
    body = {"input_ids": [10], "rid": "mine", "sampling_params": {"max_new_tokens": 1}}
    assert client.post("/generate", json=body).json()["meta_info"]["id"] == "mine"
    answer = client.post("/generate", json={"input_ids": [10]}, headers={"x-request-id": "from-header"})
    assert answer.json()["meta_info"]["id"] == "from-header"
    assert answer.headers["x-request-id"] == "from-header"


def test_the_same_id_twice_at_once_is_two_requests(client, server):
    with httpx.Client(base_url=server.url) as other:
        body = {"input_ids": [906], "rid": "twin", "sampling_params": {"max_new_tokens": 2}}
        with other.stream("POST", "/generate", json={**body, "stream": True}) as first:
            assert client.post("/generate", json=body).json()["output_ids"] == [906, 906]
            assert first.read().endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request_within_a_moment(server, stream):
    body = {"input_ids": [907], "rid": f"gone-{stream}", "stream": stream, "sampling_params": {"max_new_tokens": 500}}
    with httpx.Client(base_url=server.url) as leaving:
        if stream:
            with leaving.stream("POST", "/generate", json=body) as answer:
                next(answer.iter_lines())
                left_s = time.monotonic()
        else:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post("/generate", json=body, timeout=0.2)
            left_s = time.monotonic()
    while not any(m["type"] == "abort" and m["rid"].startswith(f"gone-{stream}.") for m in server.heard()):
        assert time.monotonic() - left_s < 2
        time.sleep(0.002)
    assert time.monotonic() - left_s < 0.25


def test_an_abort_ends_a_request_with_what_it_has(client, server):
    body = {"input_ids": [907], "rid": "victim", "stream": True, "sampling_params": {"max_new_tokens": 500}}
    with httpx.Client(base_url=server.url) as other, other.stream("POST", "/generate", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert client.post("/abort_request", json={"rid": "victim"}).json() == {"num_aborted": 1}
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["meta_info"]["finish_reason"]["type"] == "abort"
    assert client.post("/abort_request", json={"rid": "victim"}).json() == {"num_aborted": 0}
    assert client.post("/abort_request", json={}).status_code == 400
