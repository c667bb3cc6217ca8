"""With slow transfers, requests beyond the running limit hold memory early, so that decode stays full."""

import json

import pytest

from stack.core import SamplingParams, messages

NUM_REQUESTS, NUM_TOKENS, LIMIT = 12, 20, 2


def running_per_step(worker, log, extra):
    """How many requests each decode step ran, over requests that all came at once.

    A transfer takes far longer than a request's steps, also on a busy machine whose steps take several times as long.
    """
    prefill = worker(role="prefill", disagg__delay_s=0.8)
    decode = worker(
        role="decode",
        scheduler__max_running=LIMIT,
        scheduler__extra_inflight=extra,
        server__engine_log=str(log),
    )
    decode.worker.instance.runner._prefill._model.delay_s = 0.02
    greedy = SamplingParams(max_new_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    rids = [str(i) for i in range(NUM_REQUESTS)]
    for i, rid in enumerate(rids):
        meeting = messages.Bootstrap("127.0.0.1", prefill.http_port, 100 + i)
        for half in (prefill, decode):
            half.ask(rid, [5 + i] * 20, greedy, meeting)
    decode.finish(*rids)
    assert all(decode.last[rid].finish == "length" for rid in rids)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["running"] for line in lines if line["kind"] == "decode"]


@pytest.mark.parametrize(("extra", "is_full"), [(0, False), (6, True)])
def test_extra_requests_in_flight_keep_decode_full(worker, tmp_path, extra, is_full):
    running = running_per_step(worker, tmp_path / "steps.jsonl", extra)
    share_full = sum(count == LIMIT for count in running) / len(running)
    steps_needed = NUM_REQUESTS * (NUM_TOKENS - 1) / LIMIT
    assert max(running) == LIMIT
    assert (share_full > 0.7) == is_full, share_full
    assert (len(running) < 1.2 * steps_needed) == is_full, len(running)
