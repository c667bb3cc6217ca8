"""Padding rows: a batch that is padded to a bucket gives the same tokens, and the sinks stay zero."""

import random

import pytest
import torch

from stack.core import SamplingParams
from tests.support.ledger_engine import ledger_engine
from tests.support.ledger_model import expected_tokens

VOCAB = 1024


@pytest.fixture
def padded(monkeypatch):
    monkeypatch.setattr("stack.runner.build.decode_buckets", lambda config, max_running: (4, 8))
    engine = ledger_engine(num_pages=100)
    yield engine
    engine.close()


@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_padded_batches_give_the_same_tokens_and_leave_the_sinks_alone(padded, count):
    draw = random.Random(count)
    prompts = [[draw.randrange(2, VOCAB) for _ in range(draw.randrange(1, 40))] for _ in range(count)]
    sampling = SamplingParams(max_new_tokens=10, temperature=0.0, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        padded.ask(str(i), prompt, sampling)
    padded.finish()
    for i, prompt in enumerate(prompts):
        assert padded.tokens[str(i)] == expected_tokens(prompt, 10, VOCAB)
    assert padded.model.largest_decode in (4, 8)
    table = padded.runner._slots
    columns = [getattr(table, name) for name in vars(table)]
    assert all(not torch.any(column[0]) for column in columns)
    moves = padded.runner._moves
    assert not torch.any(moves._pages.rows([0])[0])
    assert not torch.any(moves._states.row(0))


def test_a_bucket_is_the_smallest_that_holds_the_batch(padded):
    bucket = padded.runner._decode.bucket
    assert [bucket(n) for n in (1, 4, 5, 8, 9)] == [4, 4, 8, 8, 9]


def test_buckets_on_a_device_with_graphs_end_at_the_running_limit():
    from stack.config import EngineConfig, with_settings
    from stack.runner import decode_buckets

    config = with_settings(EngineConfig(), {"model.device": "cuda", "graphs.decode_batch_sizes": [1, 8, 64, 128]})
    assert decode_buckets(config, 56) == (1, 8, 56)
    assert decode_buckets(config, 1088) == (1, 8, 64, 128)
    assert decode_buckets(with_settings(config, {"graphs.decode": False}), 56) == ()
