import threading
import time

import pytest

from stack.runner.stream import ThreadStream


@pytest.fixture
def stream():
    one = ThreadStream()
    yield one
    one.close()


def test_work_runs_in_order_on_another_thread(stream):
    seen = []
    for i in range(5):
        last = stream.submit(lambda read, i=i: seen.append((i, threading.current_thread().name)))
    last.done.wait()
    assert [i for i, _ in seen] == list(range(5))
    assert {name for _, name in seen} == {"stream"}


def test_submit_does_not_wait(stream):
    begun = time.perf_counter()
    submitted = stream.submit(lambda read: time.sleep(0.1))
    assert time.perf_counter() - begun < 0.05
    assert not submitted.done.is_reached()
    submitted.done.wait()
    assert submitted.elapsed_s() == pytest.approx(0.1, abs=0.08)


def test_inputs_count_as_read_before_the_work_is_done(stream):
    gate = threading.Event()

    def work(inputs_read):
        inputs_read()
        gate.wait()

    submitted = stream.submit(work)
    submitted.inputs_read.wait()
    assert not submitted.done.is_reached()
    gate.set()
    submitted.done.wait()


def test_an_error_reaches_whoever_waits_and_later_work_still_runs(stream):
    def fail(inputs_read):
        raise ValueError("a step failed")

    with pytest.raises(ValueError, match="a step failed"):
        stream.submit(fail).done.wait()
    stream.submit(lambda read: None).done.wait()
