"""A prefill and a decode instance of the real engine behind the real router."""

import contextlib
import json
import time

import httpx
import pytest

from stack.models.tiny import write_tiny
from tests.support.routing import routing
from tests.support.serving import Server

pytestmark = pytest.mark.slow

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
PROMPTS = [[*range(20, 20 + length)] for length in (1, 5, 63, 64, 65, 200)]


@pytest.fixture(scope="module")
def instances(tmp_path_factory):
    """One of each role, started together."""
    roles = {
        "single": {},
        "prefill": {"role": "prefill", "cache.prefix": "hybrid_radix"},
        "decode": {"role": "decode"},
    }
    with contextlib.ExitStack() as stack:
        started = {}
        for name, settings in roles.items():
            folder = tmp_path_factory.mktemp(name)
            write_tiny(folder, dtype="float32")
            started[name] = Server(folder, EXACT | settings, worker="stack.engine")
            stack.callback(started[name].stop)
        yield {name: server.wait_ready(180) for name, server in started.items()}


@pytest.fixture(scope="module", params=["mini-lb", "rust"])
def router(request, instances):
    with (
        routing(instances["prefill"], instances["decode"], form=request.param) as url,
        httpx.Client(base_url=url, timeout=120) as client,
    ):
        yield client


def gauges(server):
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("np1d_")}


def test_the_pair_gives_the_tokens_of_the_single_instance(router, instances):
    for prompt in PROMPTS:
        body = {"input_ids": prompt, "sampling_params": GREEDY}
        want = httpx.post(f"{instances['single'].url}/generate", json=body, timeout=120).json()
        for _ in range(3):  # the later ones find a prefix
            answer = router.post("/generate", json=body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["output_ids"] == want["output_ids"], len(prompt)


def test_a_batch_and_no_tokens_come_through(router):
    body = {"input_ids": PROMPTS[:3], "sampling_params": GREEDY}
    assert [len(answer["output_ids"]) for answer in router.post("/generate", json=body).json()] == [6, 6, 6]
    body = {"input_ids": PROMPTS[3], "sampling_params": GREEDY | {"max_new_tokens": 0}}
    answer = router.post("/generate", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["meta_info"]["completion_tokens"] == 0


def test_a_stream_counts_up(router):
    body = {"input_ids": PROMPTS[-1], "stream": True, "sampling_params": GREEDY}
    lines = [line for line in router.post("/generate", json=body).text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    counts = [json.loads(line.removeprefix("data: "))["meta_info"]["completion_tokens"] for line in lines[:-1]]
    assert counts == sorted({*counts, 6})


def test_a_client_that_leaves_gives_all_memory_back_on_both_sides(router, instances):
    halves = instances["prefill"], instances["decode"]
    assert router.post("/flush_cache").status_code == 200
    before = [gauges(half) for half in halves]
    body = {"input_ids": PROMPTS[-1], "stream": True, "sampling_params": GREEDY | {"max_new_tokens": 2000}}
    with router.stream("POST", "/generate", json=body) as answer:
        next(answer.iter_lines())
    deadline = time.monotonic() + 20
    while any(gauges(half)["np1d_running"] for half in halves) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert router.post("/flush_cache").status_code == 200
    for half, start in zip(halves, before, strict=True):
        now = gauges(half)
        for name in ("np1d_running", "np1d_pages_used", "np1d_slots_used"):
            assert now[name] == start[name], (half.folder, name)
