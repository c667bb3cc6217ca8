"""Capturing decode steps: which sizes, in which order, and that one hears of it."""

import pytest

from tests.support.ledger_engine import ledger_engine


class Recorder:
    """Stands where CUDA graphs would be: runs the phases, as the eager run before a capture does."""

    def __init__(self) -> None:
        self.captured: list[tuple[int, int, tuple[str, ...]]] = []

    def holds(self, size, max_context):
        return False

    def capture(self, size, max_context, phases):
        for run in phases.values():
            run()
        self.captured.append((size, max_context, tuple(phases)))


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr("stack.runner.build.decode_buckets", lambda config, max_running: (1, 4, 8))
    engine = ledger_engine(num_pages=100)
    engine.runner._decode._graphs = Recorder()
    yield engine
    engine.close()


def test_every_size_is_captured_once_largest_first_and_says_so(engine):
    said: list[str] = []
    engine.runner.capture(300, said.append)
    phases = ("draft", "verify", "accept", "commit")
    assert engine.runner._decode._graphs.captured == [(size, 300, phases) for size in (8, 4, 1)]
    assert [line.split(" in ")[0] for line in said] == [
        f"captured decode steps of {size} requests x 1 rows" for size in (8, 4, 1)
    ]
    assert said[-1].endswith("(3 of 3)")
