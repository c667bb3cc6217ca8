"""The API over the real engine: a tiny model, a real worker process, real tokens."""

import concurrent.futures
import json
import os
import signal
import time

import httpx
import pytest

from stack.models.tiny import write_tiny
from tests.support.serving import Server

EXACT = {
    "model.compute_dtype": "float32",
    "cache.kv_dtype": "float32",
    "cache.index_dtype": "float32",
    "cache.conv_dtype": "float32",
    "cache.expected_context": 256,
    "cache.expected_output": 32,
    "cache.budget_bytes": 160 * 2**20,
}
GREEDY = {"temperature": 0, "ignore_eos": True, "max_new_tokens": 6}
PROMPT = [*range(20, 120)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, dtype="float32")
    return folder


@pytest.fixture(scope="module")
def engine(checkpoint):
    server = Server(checkpoint, EXACT | {"cache.prefix": "hybrid_radix"}, worker="stack.engine")
    try:
        yield server.wait_ready(120)
    finally:
        server.stop()


@pytest.fixture
def api(engine):
    with httpx.Client(base_url=engine.url, timeout=60) as made:
        yield made


def generate(api, ids, **params):
    answer = api.post("/generate", json={"input_ids": ids, "sampling_params": GREEDY | params})
    assert answer.status_code == 200, answer.text
    return answer.json()


def gauges(api):
    lines = api.get("/metrics").text.splitlines()
    return {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("np1d_")}


def test_every_way_of_asking_gives_the_same_tokens(api):
    want = generate(api, PROMPT)
    with api.stream("POST", "/generate", json={"input_ids": PROMPT, "stream": True, "sampling_params": GREEDY}) as got:
        events = [json.loads(line[6:]) for line in got.iter_lines() if line.startswith("data: {")]
    assert events[-1]["output_ids"] == want["output_ids"]
    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert counts == sorted({*counts, 6})
    body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    assert api.post("/v1/completions", json=body).json()["choices"][0]["text"] == want["text"]


def test_company_changes_nothing(api):
    prompts = [[*range(10 + i, 30 + 7 * i)] for i in range(1, 7)]
    alone = [generate(api, prompt)["output_ids"] for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        together = [*threads.map(lambda prompt: generate(api, prompt)["output_ids"], prompts)]
    assert together == alone


def test_a_flush_forgets_and_a_repeated_prefix_is_found(api):
    assert api.post("/flush_cache", params={"timeout": 20}).status_code == 200
    first = generate(api, PROMPT)
    assert first["meta_info"]["cached_tokens"] == 0
    again = [generate(api, PROMPT) for _ in range(2)]
    assert again[-1]["meta_info"]["cached_tokens"] == 64
    assert {tuple(answer["output_ids"]) for answer in again} == {tuple(first["output_ids"])}


def test_a_seed_repeats_its_draws(api):
    draws = [generate(api, PROMPT, temperature=1.0, sampling_seed=seed)["output_ids"] for seed in (5, 5, 6)]
    assert draws[0] == draws[1] != draws[2]


def test_no_tokens_asked_is_legal(api):
    assert generate(api, PROMPT, max_new_tokens=0)["meta_info"]["completion_tokens"] == 0


def test_a_client_that_leaves_gives_its_pages_back(api, engine):
    api.post("/flush_cache", params={"timeout": 20})
    before = gauges(api)
    body = {"input_ids": PROMPT, "stream": True, "sampling_params": GREEDY | {"max_new_tokens": 2000}}
    with (
        httpx.Client(base_url=engine.url, timeout=60) as leaving,
        leaving.stream("POST", "/generate", json=body) as got,
    ):
        next(got.iter_lines())
    deadline = time.monotonic() + 10
    while gauges(api)["np1d_running"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert api.post("/flush_cache", params={"timeout": 20}).status_code == 200
    after = gauges(api)
    assert after["np1d_running"] == 0
    assert after["np1d_pages_used"] == before["np1d_pages_used"]
    assert after["np1d_slots_used"] == before["np1d_slots_used"]


@pytest.mark.slow
def test_health_with_a_token_of_its_own(api):
    time.sleep(5.1)  # no recent activity vouches for the worker
    assert api.get("/health_generate").status_code == 200


@pytest.mark.slow
def test_a_killed_worker_is_told_and_nothing_is_left(checkpoint):
    server = Server(checkpoint, EXACT, worker="stack.engine")
    try:
        worker = server.wait_ready(120).worker_pid
        with pytest.raises(httpx.HTTPError), httpx.Client(base_url=server.url, timeout=60) as api:
            body = {"input_ids": PROMPT, "stream": True, "sampling_params": GREEDY | {"max_new_tokens": 2000}}
            with api.stream("POST", "/generate", json=body) as got:
                lines = got.iter_lines()
                next(lines)
                os.kill(worker, signal.SIGKILL)
                list(lines)
        assert server.wait_exit() == 1
        assert server.log[-1].startswith("np1d: error: the worker process was killed by SIGKILL")
    finally:
        server.stop()


@pytest.mark.slow
def test_a_budget_that_cannot_hold_a_request_is_one_sentence(checkpoint):
    server = Server(checkpoint, EXACT | {"cache.budget_bytes": 2**20}, worker="stack.engine")
    try:
        assert server.wait_exit(60) == 2
        assert "set cache.budget_bytes to" in server.log[-1]
    finally:
        server.stop()
