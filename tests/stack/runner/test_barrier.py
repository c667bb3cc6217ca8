"""The write-after-read barrier: a device that is late to read its inputs must still read its own."""

import random
import time

import pytest

from stack.core import SamplingParams
from stack.runner.stream import ThreadStream
from tests.support.ledger_engine import ledger_engine
from tests.support.ledger_model import expected_tokens

VOCAB = 1024


class LateStream(ThreadStream):
    """Spins before each step, as a device that is busy with something else."""

    def submit(self, work):
        def late(inputs_read):
            time.sleep(0.004)
            work(inputs_read)

        return super().submit(late)


def run(barrier: str, *, count: int, broken: bool = False) -> list[bool]:
    engine = ledger_engine(scheduler__war_barrier=barrier, scheduler__overlap=True, stream=LateStream(), num_pages=200)
    if broken:
        engine.runner._await_inputs_read = lambda: None
    draw = random.Random(3)
    sampling = SamplingParams(max_new_tokens=6, temperature=0.0, ignore_eos=True)
    prompts = [[draw.randrange(2, VOCAB) for _ in range(draw.randrange(1, 40))] for _ in range(count)]
    try:
        for i, prompt in enumerate(prompts):
            engine.ask(str(i), prompt, sampling)
        engine.finish()
    finally:
        engine.close()
    return [engine.tokens[str(i)] == expected_tokens(prompt, 6, VOCAB) for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize("barrier", ["early", "deferred"])
def test_a_late_device_reads_its_own_inputs(barrier):
    assert all(run(barrier, count=40))


def test_without_the_barrier_the_same_load_goes_wrong():
    try:
        right = run("deferred", count=40, broken=True)
    except (AssertionError, IndexError, ValueError, RuntimeError):
        return
    assert not all(right)


def test_the_deferred_form_leaves_launch_free():
    """Early: launch waits for the step before. Deferred: it returns while that one still runs."""

    def longest_launch(barrier: str) -> float:
        engine = ledger_engine(scheduler__war_barrier=barrier, scheduler__overlap=True)
        engine.model.delay_s = 0.05
        longest = 0.0
        engine.ask("0", [5, 6, 7])
        try:
            for _ in range(6):
                engine.turn()
                longest = max(longest, engine.loop.host_s.get("launch_s", 0.0))
            engine.finish()
        finally:
            engine.close()
        return longest

    assert longest_launch("early") > 0.03
    assert longest_launch("deferred") < 0.03
