"""Memory on a GPU stays within the plan, whatever the prompts are, and does not grow with steps.

`torch.cuda`'s own counters say what was taken. Storms meet the quarter model at its real widths, with random weights.
"""

import random
from pathlib import Path

import pytest
import torch

from stack.config import EngineConfig, with_settings
from stack.core import SamplingParams
from stack.engine.local import LocalEngine
from stack.models.tiny import write_tiny

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

ROOT = Path(__file__).parents[3]
PREFIX, EXTENSIONS, EXTENSION = 65_536, 128, 192
LONG, MANY = 1_000_000, 4_096
VOCABULARY = 38_000
STEPS = 10_000
LEAK_BYTES = 64 * 2**10
"""What the second half may take beyond the first: a block of 512 bytes, the least there is, every 35th cycle."""
SETTINGS = {
    "model.path": str(ROOT / "workloads/checkpoints/quarter"),
    "model.weights": "random",
    "model.compute_dtype": "bfloat16",
    "model.device": "cuda",
    "cache.page_size": 256,
    "cache.kv_dtype": "fp8_e4m3",
    "cache.state_dtype": "bfloat16",
    "cache.prefix": "hybrid_radix",
    "cache.budget_bytes": 36 * 2**30,
    "cache.expected_context": PREFIX + EXTENSION,
    "cache.expected_output": 2,
    "cache.expected_shared": PREFIX,
    "scheduler.max_running": 160,
    "scheduler.chunk_tokens": 32_768,
    "scheduler.max_prefill_tokens": 32_768,
    "scheduler.reserve_output_tokens": 1,
    "graphs.decode": False,
}
ONCE = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)


def _peak_bytes(engine, prompts) -> int:
    """What passes over `prompts` allocate at most, beyond what the engine holds between them."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    engine.generate(prompts, ONCE)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - held


def test_no_storm_of_prompts_takes_more_than_was_planned_for_a_chunk():
    draw = random.Random(0)

    def tokens(count):
        return [draw.randrange(2, VOCABULARY) for _ in range(count)]

    shared = tokens(PREFIX)
    with LocalEngine(with_settings(EngineConfig(), SETTINGS)) as engine:
        engine.generate([tokens(300)], ONCE)  # compiles
        taken = {"ordinary": _peak_bytes(engine, [[*shared, 5]])}
        engine.generate([[*shared, 6]], ONCE)  # leaves a state where it parts from the first
        engine.scheduler.book.totals.cached_tokens = 0
        taken["extensions"] = _peak_bytes(engine, [[*shared, *tokens(EXTENSION)] for _ in range(EXTENSIONS)])
        assert engine.scheduler.book.totals.cached_tokens == EXTENSIONS * PREFIX
        taken["many"] = _peak_bytes(engine, [[token] for token in tokens(MANY)])
        taken["long"] = _peak_bytes(engine, [tokens(LONG)])
        plan = engine.instance.plan
    (activations,) = (term.num_bytes for term in plan.terms if term.name == "activations")
    planned = activations + plan.index_workspace_bytes
    print({name: f"{count / 2**30:.2f} GiB" for name, count in {**taken, "planned": planned}.items()})
    assert max(taken.values()) <= planned


def test_memory_is_flat_over_ten_thousand_verify_cycles(tmp_path):
    """Captured cycles of a draft and its verify, requests coming and going."""
    write_tiny(tmp_path, dtype="bfloat16", fp8=True)
    settings = {
        "model.path": str(tmp_path),
        "model.device": "cuda",
        "cache.page_size": 256,
        "cache.budget_bytes": 2 * 2**30,
        "cache.expected_context": 256,
        "cache.expected_output": 256,
        "scheduler.max_running": 8,
        "speculation.method": "dflash2",
        "speculation.draft_path": str(tmp_path / "draft"),
        "speculation.force_accept_length": 2.0,
        "graphs.decode_batch_sizes": [1, 2, 4, 8],
    }
    draw = random.Random(1)
    seen: list[tuple[int, int]] = []
    with LocalEngine(with_settings(EngineConfig(), settings)) as engine:
        num_verify = 0
        while num_verify < STEPS:
            prompts = [[draw.randrange(4, 1000) for _ in range(draw.randrange(3, 250))] for _ in range(8)]
            lengths = [SamplingParams(max_new_tokens=n, temperature=0.0, ignore_eos=True) for n in range(200, 256, 7)]
            num_verify += max(last.num_verify for _, last in engine.run(prompts, lengths))
            torch.cuda.synchronize()
            seen.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    warm = seen[len(seen) // 10 :]
    half = len(warm) // 2
    earlier, later = (max(allocated for allocated, _ in part) for part in (warm[:half], warm[half:]))
    print(f"{num_verify} cycles in {len(seen)} rounds; bytes allocated after them: {sorted({at for at, _ in warm})}")
    assert later - earlier < LEAK_BYTES
    assert len({reserved for _, reserved in warm}) == 1
