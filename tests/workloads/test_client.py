"""The client over several processes, both endpoints with token ids, and what a user sees."""

import asyncio
import io

import pytest
from fault_server import Script
from measuring import make_workload

from workloads.progress import ProgressLine
from workloads.stream import Exchange, Flight, Traffic
from workloads.wire import Answer

CUT = {"kind": "closed", "concurrency": 4, "cut_cooldown": True}


def test_two_processes_send_the_traffic_of_one(measure):
    one = measure(load={"kind": "closed", "concurrency": 4})
    two = measure(load={"kind": "closed", "concurrency": 4}, processes=2)
    assert two.verdict == "VALID", two.reasons
    assert two.client["num_processes"] == 2 and set(two.requests["process"]) == {0, 1}
    assert two.server.seen.peak_in_flight == 4

    def sent(run):
        measured = set(run.requests.query("phase == 'measured'")["rid"])
        return sorted(tuple(b["input_ids"]) for b in run.server.seen.bodies if b["rid"] in measured)

    assert sent(one) == sent(two)
    assert two.values["num_requests"] == 20


def test_a_mistake_in_a_child_is_one_sentence(measure):
    from workloads.spec import SpecError

    natural = {"kind": "natural_text", "tokenizer": "absent.json", "input_len": 80, "output_len": 4}
    with pytest.raises(SpecError, match="no tokenizer"):
        measure(source=natural, cache={"intent": "cold"}, processes=2)


@pytest.mark.parametrize("endpoint", ["generate", "completions"])
def test_both_endpoints_take_token_ids_and_give_the_same_counts(measure, endpoint):
    run = measure(Script(cache_page=16), endpoint=endpoint)
    assert run.verdict == "VALID", run.reasons
    measured = run.requests.query("phase == 'measured'")
    assert set(measured["input_tokens"]) == {64} and set(measured["output_tokens"]) == {8}
    assert set(measured["cached_tokens"]) == {0} and set(measured["finish_reason"]) == {"length"}


def test_counts_that_a_server_hides_are_null_and_the_run_is_invalid(measure):
    run = measure(Script(hide_counts=True))
    assert run.requests["cached_tokens"].isna().all()
    assert run.failed == {"input_length", "cached_ratio"}
    found = run.body["diagnostics"]
    assert found["input_tok_s"] is None and found["cached_ratio"] is None
    assert run.body["metrics_missing"]["input_tok_s"] == "the server does not report cached tokens"


def test_a_chunk_without_text_is_still_the_first_token(measure):
    run = measure(Script(empty_text=True, ttft_s=0.05))
    assert run.verdict == "VALID" and run.values["ttft_mean_s"] == pytest.approx(0.05, rel=0.5)


def test_slots_stay_busy_until_the_last_measured_answer(measure):
    full = measure(Script(chunk_gap_s=0.01), limits={"min_concurrency_share": 0.9})
    assert full.verdict == "VALID", full.reasons
    assert (full.requests["phase"] == "cooldown").sum() > 0
    drained = measure(
        Script(chunk_gap_s=0.01),
        load={"kind": "closed", "concurrency": 16, "keep_full": False},
        limits={"min_concurrency_share": 0.95},
        requests_per_pass=24,
    )
    assert drained.failed == {"concurrency"} and "in flight for only" in drained.reasons


def test_the_cooldown_is_cut_when_the_last_measured_answer_of_the_session_has_ended(measure):
    run = measure(Script(chunk_gap_s=0.02), passes=2, load=CUT)
    assert run.verdict == "VALID", run.reasons
    first, last = (run.requests[run.requests["pass_index"] == number] for number in (0, 1))
    assert not (first["finish_reason"] == "cut").any(), "the next pass finds servers with nothing to do"
    cut = last[last["finish_reason"] == "cut"]
    assert len(cut) and set(cut["phase"]) == {"cooldown"} and cut["ok"].all()
    assert (cut["output_tokens"] < cut["output_tokens_requested"]).all()
    chunks = run.chunks[run.chunks["pass_index"] == 1].groupby("request_index")["num_tokens"].sum()
    assert chunks.reindex(cut["request_index"]).fillna(0).tolist() == cut["output_tokens"].tolist()
    assert (cut["end_s"] > last[last["phase"] == "measured"]["end_s"].max()).all()


def test_an_answer_whose_tokens_are_unknown_is_not_cut(measure):
    """One that has not begun can be: none of its tokens came."""
    run = measure(Script(chunk_gap_s=0.02, hide_counts=True), load=CUT)
    begun = run.requests[run.requests["num_chunks"] > 0]
    assert len(begun) >= 20 and not (begun["finish_reason"] == "cut").fillna(False).any()


@pytest.mark.parametrize(
    ("chunk_tokens", "counts", "is_cut"),
    [([], None, True), ([1, 2], 64, True), ([1, None], 64, False), ([1, 2], None, False)],
)
def test_a_flight_of_the_cooldown_is_cut_where_its_tokens_are_known(chunk_tokens, counts, is_cut):
    async def cut(phase):
        task = asyncio.create_task(asyncio.sleep(10))
        answer = Answer(input_tokens=counts, cached_tokens=counts)
        exchange = Exchange(None, [0.0] * len(chunk_tokens), chunk_tokens, answer)
        flight = Flight(task=task, last_event_s=0.0, phase=phase, exchange=exchange)
        flight.cut()
        requested = task.cancelling() > 0
        task.cancel()
        return requested, flight.is_cut

    assert asyncio.run(cut("cooldown")) == (is_cut, is_cut)
    assert asyncio.run(cut("measured")) == (False, False)


def test_a_terminal_gets_a_bar_and_a_file_gets_lines():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        line = ProgressLine(title="decode", passes=3, per_pass=10, stream=stream)
        line.begin(1)
        line._next_line_s = 0
        line.update(5, 1, 1000)
    assert "\r" in terminal.getvalue() and "pass 2/3 [############............] 5/10, 1 FAILED" in terminal.getvalue()
    assert file.getvalue().endswith("tok/s\n")


async def _answer(traffic, phase, ok):
    task = asyncio.current_task()
    assert task is not None
    flight = Flight(task=task, last_event_s=0.0)
    traffic.enter(flight, phase)
    traffic.leave(flight, phase, ok=ok)


def test_the_bar_counts_measured_answers_only():
    traffic = Traffic()
    for phase in ("warmup", "measured", "measured", "cooldown"):
        asyncio.run(_answer(traffic, phase, ok=phase != "cooldown"))
    assert (traffic.num_done, traffic.num_failed, traffic.peak_in_flight) == (2, 1, 1)


def test_the_default_is_one_process_for_256_streams():
    from workloads.fleet import STREAMS_PER_PROCESS

    assert STREAMS_PER_PROCESS == 256
    assert make_workload(load={"kind": "closed", "concurrency": 9}).concurrency == 9
