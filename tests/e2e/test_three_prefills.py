"""Three prefill instances and one decode instance behind the real router give the single instance's tokens."""

import random

import httpx
import pytest

from stack.models.tiny import write_tiny
from tests.support.cluster import EXACT, Cluster
from tests.support.serving import Server

pytestmark = pytest.mark.slow

NUM_TOKENS = 24
LENGTHS = (1, 4, 63, 64, 65, 130, 257, 400)


def prompts():
    """Random prompts, and pairs that share a page-aligned beginning."""
    draw = random.Random(7)
    plain = [[draw.randrange(4, 900) for _ in range(length)] for length in LENGTHS]
    shared = [draw.randrange(4, 900) for _ in range(192)]
    return plain + [shared + [draw.randrange(4, 900) for _ in range(length)] for length in (1, 40, 64)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, dtype="float32")
    return folder


@pytest.fixture(scope="module")
def wanted(model, tmp_path_factory):
    """What one instance of both roles answers."""
    server = Server(model, EXACT, worker="stack.engine")
    try:
        server.wait_ready(180)
        answers = [_ask(server.url, prompt) for prompt in prompts()]
    finally:
        server.stop()
    return answers


@pytest.fixture(scope="module")
def cluster(model, wanted, tmp_path_factory):
    running = Cluster(tmp_path_factory.mktemp("cluster"), model, 3, {})
    yield running
    running.close()


@pytest.mark.parametrize("form", ["rust", "mini-lb"])
def test_greedy_output_equals_the_single_instance(cluster, wanted, form):
    cluster.start_router(form)
    try:
        for _ in range(3):  # round robin: every prefill sees every prompt, later ones with a warm cache
            asks = [cluster.ask(prompt, NUM_TOKENS) for prompt in prompts()]
            for ask, want in zip(asks, wanted, strict=True):
                ask.wait(180)
                assert (ask.error, ask.tokens) == ("", want), len(ask.prompt)
    finally:
        cluster.stop_router()
    cluster.wait_empty()
    if form == "rust":
        computed = [prefill.gauges()["prompt_tokens"] for prefill in cluster.prefills]
        assert all(computed), computed


def _ask(url, prompt):
    sampling = {"temperature": 0, "ignore_eos": True, "max_new_tokens": NUM_TOKENS}
    answer = httpx.post(f"{url}/generate", json={"input_ids": prompt, "sampling_params": sampling}, timeout=180)
    assert answer.status_code == 200, answer.text
    return answer.json()["output_ids"]
