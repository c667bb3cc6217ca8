"""128 short extensions of one long prefix in a few steps: index scores stay inside the planned workspace."""

import random

import pytest

from stack.config import EngineConfig, with_settings
from stack.core import SamplingParams
from stack.engine.local import LocalEngine
from stack.kernels.index_select import torch_select
from stack.models.tiny import write_tiny

PREFIX, COUNT, EXTENSION = 576, 128, 8


@pytest.mark.slow
def test_scores_grow_with_the_longest_context_and_not_with_the_sum(tmp_path, monkeypatch):
    write_tiny(tmp_path)
    settings = {
        "model.path": str(tmp_path),
        "cache.prefix": "hybrid_radix",
        "cache.budget_bytes": 320 << 20,
        "cache.state_dtype": "bfloat16",
        "cache.expected_context": PREFIX + EXTENSION,
        "cache.expected_output": 2,
        "cache.expected_shared": PREFIX,
        "scheduler.chunk_tokens": 1024,
        "scheduler.max_prefill_tokens": 1024,
        "scheduler.reserve_output_tokens": 1,
    }
    sizes, rows = [], []
    scores = torch_select._scores

    def counted(*args):
        scores_BP = scores(*args)
        sizes.append(scores_BP.nbytes)
        return scores_BP

    monkeypatch.setattr(torch_select, "_scores", counted)
    draw = random.Random(0)
    shared = [draw.randrange(2, 1024) for _ in range(PREFIX)]
    storm = [shared + [draw.randrange(2, 1024) for _ in range(EXTENSION)] for _ in range(COUNT)]
    once = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
    with LocalEngine(with_settings(EngineConfig(), settings)) as engine:
        plan = engine.instance.plan
        assert plan.max_running >= COUNT
        for tail in (5, 6):  # the second one leaves a state where it parts from the first
            engine.generate([[*shared, tail]], once)
        launch = engine.instance.runner.launch
        monkeypatch.setattr(
            engine.instance.runner, "launch", lambda step: (rows.append(step.num_tokens), launch(step))[1]
        )
        sizes.clear()
        engine.scheduler.book.totals.cached_tokens = 0
        engine.generate(storm, once)
        hits = engine.scheduler.book.totals.cached_tokens
    assert hits == COUNT * PREFIX
    assert max(rows) == COUNT * EXTENSION == 1024, "the storm ran in one step"
    assert max(sizes) <= plan.index_workspace_bytes
    sum_of_contexts = max(rows) * COUNT * (PREFIX + EXTENSION) // 4 * 4
    assert sum_of_contexts > 8 * plan.index_workspace_bytes, "by the sum it would not have fitted"
