"""With slow transfers, requests beyond the running limit hold memory early, so that decode stays full."""

import itertools
import json

import pytest

from stack.core import SamplingParams, messages

NUM_REQUESTS, NUM_TOKENS, LIMIT = 10, 20, 2
TRANSFER_S, STEP_S = 2.0, 0.04
LONGEST_STEP_S = 0.25
"""What lies longer between two decode steps is counted as a step of this length and a wait."""


def busy_share(worker, log, extra):
    """The share of its `LIMIT` running places that decode used, over requests that all came at once, by time.

    A place is free while a transfer runs that nobody began early, whether or not the other place is free then too. With
    R requests in memory no place is free where R / (transfer + decode) >= LIMIT / decode. A busy machine makes steps
    longer: at four times the length the share without early transfers is still under two thirds.
    """
    prefill = worker(role="prefill", disagg__delay_s=TRANSFER_S)
    decode = worker(
        role="decode",
        scheduler__max_running=LIMIT,
        scheduler__extra_inflight=extra,
        server__engine_log=str(log),
    )
    decode.worker.instance.runner._prefill._model.delay_s = STEP_S
    greedy = SamplingParams(max_new_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    rids = [str(i) for i in range(NUM_REQUESTS)]
    for i, rid in enumerate(rids):
        meeting = messages.Bootstrap("127.0.0.1", prefill.http_port, 100 + i)
        for half in (prefill, decode):
            half.ask(rid, [5 + i] * 20, greedy, meeting)
    decode.finish(*rids)
    assert all(decode.last[rid].finish == "length" for rid in rids)
    steps = [line for line in map(json.loads, log.read_text().splitlines()) if line["kind"] == "decode"]
    assert max(step["running"] for step in steps) == LIMIT
    busy_s = sum(
        step["running"] * min(step["t_s"] - before["t_s"], LONGEST_STEP_S) for before, step in itertools.pairwise(steps)
    )
    return busy_s / LIMIT / (steps[-1]["t_s"] - steps[0]["t_s"])


@pytest.mark.parametrize(("extra", "is_full"), [(0, False), (6, True)])
def test_extra_requests_in_flight_keep_decode_full(worker, tmp_path, extra, is_full):
    share = busy_share(worker, tmp_path / "steps.jsonl", extra)
    assert (share > 0.75) == is_full, share
