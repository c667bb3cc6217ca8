import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stack.config import EngineConfig, to_dict, with_settings
from stack.core import SamplingParams, messages
from tests.support.ledger_model import expected_tokens

PROMPT = list(range(2, 40))


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)


def test_ready_carries_the_memory_plan_and_what_was_bound(worker):
    ready = worker().ready
    assert ready.max_running == ready.plan["max_running"] > 0
    assert ready.max_total_tokens == ready.plan["num_pages"] * 16
    assert ready.impls["sample"] == "torch_sort"
    assert ready.instance


def test_a_request_is_served_and_its_last_message_tells_the_times(worker):
    one = worker()
    one.ask("a", PROMPT)
    one.finish("a")
    assert one.tokens["a"] == expected_tokens(PROMPT, 8, 1024)
    assert one.last["a"].finish == "length"
    assert {"queue_s", "prefill_s", "decode_s"} <= set(one.last["a"].timing)


def test_a_request_that_cannot_run_is_refused_and_others_are_served(worker):
    one = worker()
    one.ask("bad", [])
    one.ask("long", [5] * 5000)
    one.ask("good", PROMPT)
    one.finish("bad", "long", "good")
    assert [(one.last[rid].finish, one.last[rid].status) for rid in ("bad", "long")] == [("abort", 400)] * 2
    assert one.last["good"].finish == "length"


def test_an_abort_ends_the_request_with_499_and_unknown_ids_are_ignored(worker):
    one = worker()
    one.worker.instance.runner._prefill._model.delay_s = 0.01
    one.say(messages.Abort(rid="nobody"))
    one.ask("a", PROMPT, greedy(200))
    one.receive()
    one.say(messages.Abort(rid="a"))
    one.finish("a")
    assert (one.last["a"].finish, one.last["a"].status) == ("abort", 499)
    while one.stats()["pages_used"]:
        time.sleep(0.01)


def test_an_empty_id_aborts_everything(worker):
    one = worker()
    one.worker.instance.runner._prefill._model.delay_s = 0.01
    for rid in "abc":
        one.ask(rid, PROMPT, greedy(200))
    one.receive()
    one.say(messages.Abort(rid=""))
    one.finish(*"abc")
    assert {one.last[rid].finish for rid in "abc"} == {"abort"}


def test_a_flush_waits_until_idle_and_drops_the_cache(worker):
    one = worker(cache__prefix="hybrid_radix")
    one.ask("a", PROMPT)
    one.say(messages.Flush(call=5, timeout_s=10.0))
    flushed = one.hear(messages.Flushed)
    assert (flushed.call, flushed.reason) == (5, "")
    assert "a" in one.last
    assert one.stats()["pages_cached"] == 0


def test_a_flush_that_cannot_happen_in_time_says_why(worker):
    one = worker()
    one.worker.instance.runner._prefill._model.delay_s = 0.01
    one.ask("a", PROMPT, greedy(200))
    one.say(messages.Flush(call=6, timeout_s=0.05))
    assert "1 requests are running" in one.hear(messages.Flushed).reason


def test_a_drain_finishes_what_runs_refuses_what_comes_and_exits_with_0(worker):
    one = worker()
    one.worker.instance.runner._prefill._model.delay_s = 0.005
    one.ask("a", PROMPT, greedy(20))
    one.receive()
    one.say(messages.Drain(call=1))
    one.ask("late", PROMPT)
    one.hear(messages.Drained)
    assert one.last["a"].finish == "length"
    assert (one.last["late"].finish, one.last["late"].status) == ("abort", 503)
    one.thread.join(10)
    assert one.code == [0]


def test_a_crash_is_told_before_the_worker_ends(worker):
    one = worker()
    one.worker.instance.runner._prefill._model.forward = lambda *args, **kwargs: 1 / 0
    one.ask("a", PROMPT)
    fatal = one.hear(messages.Fatal)
    assert "ZeroDivisionError" in fatal.message
    one.thread.join(10)
    assert isinstance(one.code[0], ZeroDivisionError)


def test_an_idle_worker_sleeps(worker):
    one = worker()
    one.ask("a", PROMPT)
    one.finish("a")
    time.sleep(0.05)
    begun = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - begun < 0.2


def test_the_step_log_has_a_line_a_step(worker, tmp_path):
    one = worker()
    one.ask("a", PROMPT)
    one.finish("a")
    one.drain()
    lines = [json.loads(line) for line in (tmp_path / "engine0.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines[:1]] == ["prefill"]
    assert sum(line["tokens"] for line in lines if line["kind"] == "prefill") == len(PROMPT)
    decodes = [line for line in lines if line["kind"] == "decode"]
    assert sum(line["tokens"] for line in decodes) == 7
    wanted = {"t_s", "step", "kind", "running", "waiting", "inflight", "rows", "tokens", "hit_tokens"}
    wanted |= {"pages_used", "pages_total", "slots_used", "slots_total", "running_limit", "page_bytes", "slot_bytes"}
    assert all(wanted <= set(line) for line in lines)
    assert all({"accepted", "verify", "device_s", "plan_s"} <= set(line) for line in decodes)


def test_a_trace_of_some_steps_is_written(worker, tmp_path):
    one = worker()
    one.say(messages.Profile(call=3, folder=str(tmp_path / "traces"), num_steps=3))
    one.ask("a", PROMPT)
    profiled = one.hear(messages.Profiled)
    assert profiled.call == 3
    assert Path(profiled.path).stat().st_size > 0


@pytest.mark.slow
def test_a_bad_configuration_exits_with_2_and_one_sentence(tmp_path):
    config = with_settings(EngineConfig(), {"model.path": str(tmp_path / "nowhere")})
    file = tmp_path / "config.json"
    file.write_text(json.dumps(to_dict(config)))
    done = subprocess.run(
        [sys.executable, "-m", "stack.engine", str(file), "--address", "tcp://127.0.0.1:9"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "config.json" in done.stderr
