"""What a server says about speculation adds up: per answer, per instance, per step. Blocks end at stop strings."""

import json

import httpx
import pytest

from tests.support.serving import Server

pytestmark = pytest.mark.slow

MEAN, NEW = 4.5, 24
GREEDY = {"temperature": 0, "ignore_eos": True, "max_new_tokens": NEW, "sampling_seed": 7}
"""The seed decides how many drafts a step is forced to accept, and with it the text."""


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "engine.jsonl"


@pytest.fixture(scope="module")
def server(tiny, exact, log):
    """Acceptance is forced, so that random weights accept blocks; the folder is the one in the settings."""
    settings = exact("dflash2", **{"speculation.force_accept_length": MEAN, "server.engine_log": str(log)})
    started = Server(tiny, settings, worker="stack.engine")
    try:
        yield started.wait_ready(180)
    finally:
        started.stop()


@pytest.fixture(scope="module")
def answers(server):
    """Four requests one after the other."""
    return [_generate(server, [*range(10 + i, 60 + i)]) for i in range(4)]


def _generate(server, prompt, **more):
    body = {"input_ids": prompt, "sampling_params": GREEDY | more}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_answers_counts_add_up(answers):
    for answer in answers:
        meta = answer["meta_info"]
        assert meta["completion_tokens"] == len(answer["output_ids"]) == NEW
        assert meta["spec_verify_ct"] + meta["spec_num_correct_drafts"] == NEW - 1, "the first token is prefill's"
        assert meta["spec_accept_length"] == NEW / meta["spec_verify_ct"]
        assert meta["spec_num_proposed_drafts"] == 7 * meta["spec_verify_ct"]
        assert meta["spec_accept_rate"] == meta["spec_num_correct_drafts"] / meta["spec_num_proposed_drafts"]
        assert meta["spec_accept_length"] == pytest.approx(MEAN, abs=0.8)


def test_the_instances_mean_is_that_of_its_answers(answers, server):
    verifies, accepted = (
        sum(answer["meta_info"][name] for answer in answers) for name in ("spec_verify_ct", "spec_num_correct_drafts")
    )
    info = httpx.get(f"{server.url}/server_info", timeout=30).json()
    state = info["internal_states"][0]
    assert (state["num_verify"], state["num_accepted_drafts"]) == (verifies, accepted)
    assert state["avg_spec_accept_length"] == pytest.approx(1 + accepted / verifies)
    assert info["config"]["speculation"]["force_accept_length"] == MEAN, "a forced acceptance is on record"


def test_the_steps_add_up_to_the_answers(answers, server, log):
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    verifies = [step for step in steps if step["kind"] == "verify"]
    asked = sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)
    assert sum(step["verify"] for step in verifies) == asked
    assert sum(step["accepted"] for step in verifies) == len(answers) * (NEW - 1) - asked
    assert sum(step["tokens"] for step in verifies) == len(answers) * (NEW - 1)
    for step in verifies:
        phases = [step[f"{phase}_s"] for phase in ("draft", "verify", "accept", "commit")]
        assert all(seconds > 0 for seconds in phases)
        assert sum(phases) <= step["device_s"] * 1.001 + 1e-6


def test_a_stop_string_inside_a_block_ends_the_text_there(answers, server):
    whole = answers[0]["text"]
    stop = whole[len(whole) // 2 :][:3]
    answer = _generate(server, [*range(10, 60)], stop=[stop])
    assert answer["text"] == whole[: whole.index(stop)]
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": stop}
    count = meta["completion_tokens"]
    assert count < NEW and answer["output_ids"] == answers[0]["output_ids"][:count]
